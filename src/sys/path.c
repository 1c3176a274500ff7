/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/path.h"

#include <string.h>

/* Is this component, of that length, a folder of RDMA devices? */
static int is_class(const char *name, size_t length) {
  static const char *const names[] = {"infiniband", "infiniband_verbs", "infiniband_mad"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return 1;
  return 0;
}

static int begins(const char *path, size_t length, const char *with) {
  size_t n = strlen(with);
  return length >= n && memcmp(path, with, n) == 0 && (length == n || path[n] == '/');
}

/* Of a path that has neither `.` nor `..` nor an empty component. */
static enum sys_place place_of(const char *path, size_t length) {
  enum sys_place place = SYS_ELSEWHERE;
  const char *end = path + length;
  const char *before = path; /* end of what stands before the component */
  if (begins(path, length, "/dev/infiniband")) return SYS_TREE;
  if (!begins(path, length, "/sys/class") && !begins(path, length, "/sys/devices") &&
      !begins(path, length, "/sys/bus"))
    return SYS_ELSEWHERE;
  while (before < end) {
    const char *name = before + 1, *stop = memchr(name, '/', (size_t)(end - name));
    if (!stop) stop = end;
    if (is_class(name, (size_t)(stop - name))) {
      size_t n = (size_t)(before - path);
      if (n == strlen("/sys/class") && begins(path, n, "/sys/class"))
        place = SYS_TREE;
      else if (place == SYS_ELSEWHERE || (n > 7 && memcmp(before - 7, "/device", 7) == 0))
        place = SYS_BEHIND;
    }
    before = stop;
  }
  return place;
}

/* Is this a folder and not a symbolic link, so that `..` behind it leads to what stands before?
   In our tree only `device` leads out. */
static int is_folder(const char *path, size_t length) {
  if (place_of(path, length) != SYS_ELSEWHERE) {
    for (const char *p = path; (p = memchr(p, '/', (size_t)(path + length - p))); ++p)
      if (begins(p, (size_t)(path + length - p), "/device")) return 0;
    return 1;
  }
  if (length == 0 || (length == 4 && memcmp(path, "/dev", 4) == 0)) return 1;
  if (begins(path, length, "/sys/class"))
    return length == 10 || !memchr(path + 11, '/', length - 11);
  return begins(path, length, "/sys") && (length == 4 || !memchr(path + 5, '/', length - 5));
}

enum sys_place sys_classify(const char *path, char *out) {
  size_t length = 0;
  int was_ours = 0;
  const char *rest = path;
  while (*rest) {
    const char *name = rest + strspn(rest, "/");
    size_t n = strcspn(name, "/");
    if (n == 0 || (n == 2 && memcmp(name, "..", 2) == 0 && !is_folder(out, length))) break;
    rest = name + n;
    if (n == 1 && *name == '.') continue;
    if (n == 2 && memcmp(name, "..", 2) == 0) {
      was_ours |= place_of(out, length) != SYS_ELSEWHERE;
      while (length > 0 && out[--length] != '/') continue;
      continue;
    }
    if (length + n + 2 > PATH_MAX) return SYS_ELSEWHERE;
    out[length++] = '/';
    memcpy(out + length, name, n);
    length += n;
  }
  enum sys_place place = place_of(out, length);
  if (place == SYS_ELSEWHERE && was_ours) place = SYS_LEFT;
  size_t n = strlen(rest); /* slashes, or what only the kernel can resolve */
  if (length + n + 1 > PATH_MAX) return SYS_ELSEWHERE;
  memcpy(out + length, rest, n + 1);
  if (length + n == 0) memcpy(out, "/", 2);
  return place;
}

int sys_restore(char *path) {
  for (char *p = path; (p = strstr(p, "/adverb-")); ++p) {
    char *q = p + strlen("/adverb-");
    q += strspn(q, "0123456789");
    if (strncmp(q, "/sysfs-", 7) != 0) continue;
    char *inside = strchr(q + 1, '/');
    if (!inside) return 0;
    if (strncmp(inside, "/behind/", 8) == 0) inside += 7;
    memmove(path, inside, strlen(inside) + 1);
    return 1;
  }
  return 0;
}
