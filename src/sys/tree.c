/* SPDX-License-Identifier: Apache-2.0 */
/* The tree is libibverbs's (verbs/sysfs.hpp), which knows the devices; without Adverb's in the
   process, paths stay what they are. */
#define _GNU_SOURCE
#include "sys/tree.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys/path.h"

/* What is not there, whatever the host has. */
static const char nothing[] = "/sys/class/adverb/nothing";

volatile int sys_inside;
/* The process whose tree the working folder is in; -1: another one's. */
static volatile pid_t inside_of;

typedef const char *root_function(const char *path);

static root_function *find_root_function(void) {
  static root_function *volatile known;
  static volatile int looked;
  if (!looked) {
    void *symbol = dlvsym(RTLD_DEFAULT, "adverb_sysfs", "ADVERB_PRIVATE_1");
    memcpy((void *)&known, &symbol, sizeof symbol);
    looked = 1;
  }
  return known;
}

/* What was asked for, in this process's tree; null: nobody keeps one. */
static const char *in_tree(enum sys_place place, const char *path, char *room) {
  root_function *root_of = find_root_function();
  if (!root_of) return NULL;
  const char *root = root_of(path);
  if (!root) return nothing;
  const char *behind = place == SYS_BEHIND ? "/behind" : "";
  size_t n = strlen(root), b = strlen(behind), length = strlen(path);
  if (n + b + length + 1 > SYS_ROOM) return nothing;
  memcpy(room, root, n);
  memcpy(room + n, behind, b);
  memcpy(room + n + b, path, length + 1);
  return room;
}

/* The working folder may be in the tree of a process that started this one (`cd` in a shell, then a
   program).  That one is not kept up to date here, so this process goes to the same place in its
   own. */
static void enter_own(void) {
  char path[PATH_MAX], room[SYS_ROOM];
  if (syscall(SYS_getcwd, path, sizeof path) <= 0 || !sys_restore(path)) {
    sys_inside = 0;
    return;
  }
  char clean[PATH_MAX];
  const char *own = in_tree(sys_classify(path, clean), clean, room);
  if (own && own != nothing) syscall(SYS_chdir, own);
  inside_of = getpid();
}

static void refresh_inside(void) {
  if (inside_of != getpid()) {
    enter_own();
  } else {
    root_function *root_of = find_root_function();
    if (root_of) root_of("counters/");
  }
}

static int is_root(int folder) {
  struct stat a, b;
  return fstat(folder, &a) == 0 && stat("/", &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

/* What the path names; `clean` as of sys_classify().  As hwloc has them, all paths may be relative
   to a descriptor of the root. */
static enum sys_place place_at(int folder, const char *path, char *clean) {
  if (path[0] == '/') return sys_classify(path, clean);
  char whole[64 + NAME_MAX]; /* none of ours is longer */
  size_t n = strlen(path);
  if (n + 2 > sizeof whole) return SYS_ELSEWHERE;
  whole[0] = '/';
  memcpy(whole + 1, path, n + 1);
  enum sys_place place = sys_classify(whole, clean);
  return place != SYS_ELSEWHERE && is_root(folder) ? place : SYS_ELSEWHERE;
}

/* Not cancelled: what goes on in libibverbs holds locks. */
struct guard {
  int error, state;
};
static struct guard begin(void) {
  struct guard g = {errno, 0};
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g.state);
  return g;
}
static void end(struct guard g) {
  pthread_setcancelstate(g.state, NULL);
  errno = g.error;
}

/* Apart from sys_look(), so that a thread with a small stack needs little of it for other paths. */
int sys_is_ours(int folder, const char *path) {
  char clean[PATH_MAX];
  if (path[0] == '/') return sys_classify(path, clean) != SYS_ELSEWHERE;
  struct guard g = begin();
  int ours = 0;
  if (folder == AT_FDCWD)
    refresh_inside();
  else
    ours = place_at(folder, path, clean) != SYS_ELSEWHERE;
  end(g);
  return ours;
}

const char *sys_look(int folder, const char *path, char *room) {
  char clean[PATH_MAX];
  struct guard g = begin();
  enum sys_place place = place_at(folder, path, clean);
  const char *where = path;
  if (place == SYS_LEFT) {
    where = strcpy(room, clean);
  } else if (place != SYS_ELSEWHERE) {
    const char *in = in_tree(place, clean, room);
    if (in) where = in;
  }
  end(g);
  return where;
}

void sys_moved(const char *path) {
  char clean[PATH_MAX];
  if (path[0] != '/') return; /* may still be inside, or out by `..`, which costs only time */
  enum sys_place place = sys_candidate(path) ? sys_classify(path, clean) : SYS_ELSEWHERE;
  inside_of = getpid();
  sys_inside = place == SYS_TREE || place == SYS_BEHIND;
}

__attribute__((constructor)) static void start(void) {
  char path[PATH_MAX];
  if (syscall(SYS_getcwd, path, sizeof path) > 0 && sys_restore(path)) {
    inside_of = -1;
    sys_inside = 1;
  }
}
