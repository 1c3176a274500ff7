/* SPDX-License-Identifier: Apache-2.0 */
/* The C library's functions that take a path.  Each hands on to the next one of its name, with the
   path that sys_look() gives; for all other paths it is a few compares, touches neither errno nor
   memory, and may be called from a signal handler.  The C library's own calls of one another do not
   come by here, which is why fopen(3) stands beside open(2). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sys/path.h"
#include "sys/tree.h"

/* --- the next function of that name */

struct next {
  const char *name;
  void *volatile function;
};
__attribute__((visibility("hidden"))) /* every one, gathered by the linker */
extern struct next __start_sys_next[],
    __stop_sys_next[];

static void *next_of(struct next *next) {
  /* The first versions of the C library on various processors: its old functions have no other. */
  static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.4"};
  if (next->function) return next->function;
  void *found = dlsym(RTLD_NEXT, next->name);
  for (size_t i = 0; !found && i < sizeof versions / sizeof *versions; ++i)
    found = dlvsym(RTLD_NEXT, next->name, versions[i]);
  return next->function = found;
}

/* Before signals come: dlsym(3) may allocate.  Who calls earlier looks it up himself. */
__attribute__((constructor)) static void find_all(void) {
  for (struct next *next = __start_sys_next; next != __stop_sys_next; ++next) next_of(next);
}

/* The declaration of our function with the C library's name, and of the type of the next one. */
#define FUNCTION(result, name, ...)                                                          \
  static struct next next_##name __attribute__((section("sys_next"), used)) = {#name, NULL}; \
  typedef result type_##name(__VA_ARGS__);                                                   \
  __attribute__((visibility("default"))) result sys_##name(__VA_ARGS__) __asm__(#name);      \
  result sys_##name(__VA_ARGS__)
#define NEXT(name) ((type_##name *)next_of(&next_##name))

static inline int wants(int folder, const char *p) {
  if (!p) return 0;
  if (p[0] == '/') return sys_candidate(p);
  if (folder == AT_FDCWD) return sys_inside;
  return (p[0] == 's' && p[1] == 'y' && p[2] == 's' && p[3] == '/') ||
         (p[0] == 'd' && p[1] == 'e' && p[2] == 'v' && p[3] == '/');
}

#define AT(folder, path)                                    \
  (wants(folder, path) && sys_is_ours(folder, path)         \
       ? sys_look(folder, path, __builtin_alloca(SYS_ROOM)) \
       : (path))
#define HERE(path) AT(AT_FDCWD, path)

/* --- opening */

/* The mode is there only with these flags, as for open(2). */
#define MODE(flags)                                                \
  mode_t mode = 0;                                                 \
  if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list list;                                                  \
    va_start(list, flags);                                         \
    mode = va_arg(list, mode_t);                                   \
    va_end(list);                                                  \
  }

#define OPEN(name)                                        \
  FUNCTION(int, name, const char *path, int flags, ...) { \
    MODE(flags)                                           \
    return NEXT(name)(HERE(path), flags, mode);           \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                  \
  FUNCTION(int, name, int folder, const char *path, int flags, ...) { \
    MODE(flags)                                                       \
    return NEXT(name)(folder, AT(folder, path), flags, mode);         \
  }
OPENAT(openat)
OPENAT(openat64)

/* Those that -D_FORTIFY_SOURCE calls. */
#define OPEN_2(name) \
  FUNCTION(int, name, const char *path, int flags) { return NEXT(name)(HERE(path), flags); }
OPEN_2(__open_2)
OPEN_2(__open64_2)
#define OPENAT_2(name)                                           \
  FUNCTION(int, name, int folder, const char *path, int flags) { \
    return NEXT(name)(folder, AT(folder, path), flags);          \
  }
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

#define CREAT(name) \
  FUNCTION(int, name, const char *path, mode_t mode) { return NEXT(name)(HERE(path), mode); }
CREAT(creat)
CREAT(creat64)

#define FOPEN(name)                                            \
  FUNCTION(FILE *, name, const char *path, const char *mode) { \
    return NEXT(name)(HERE(path), mode);                       \
  }
FOPEN(fopen)
FOPEN(fopen64)
#define FREOPEN(name)                                                        \
  FUNCTION(FILE *, name, const char *path, const char *mode, FILE *stream) { \
    return NEXT(name)(HERE(path), mode, stream);                             \
  }
FREOPEN(freopen)
FREOPEN(freopen64)

/* --- folders */

FUNCTION(DIR *, opendir, const char *path) { return NEXT(opendir)(HERE(path)); }

#define SCANDIR(name, entry)                                                                       \
  FUNCTION(int, name, const char *path, struct entry ***list, int (*filter)(const struct entry *), \
           int (*compare)(const struct entry **, const struct entry **)) {                         \
    return NEXT(name)(HERE(path), list, filter, compare);                                          \
  }
SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)
#define SCANDIRAT(name, entry)                                             \
  FUNCTION(int, name, int folder, const char *path, struct entry ***list,  \
           int (*filter)(const struct entry *),                            \
           int (*compare)(const struct entry **, const struct entry **)) { \
    return NEXT(name)(folder, AT(folder, path), list, filter, compare);    \
  }
SCANDIRAT(scandirat, dirent)
SCANDIRAT(scandirat64, dirent64)

FUNCTION(int, chdir, const char *path) {
  int result = NEXT(chdir)(HERE(path));
  if (result == 0) sys_moved(path);
  return result;
}

FUNCTION(char *, getcwd, char *path, size_t size) {
  char *result = NEXT(getcwd)(path, size);
  if (result) sys_restore(result);
  return result;
}
FUNCTION(char *, __getcwd_chk, char *path, size_t size, size_t room) {
  char *result = NEXT(__getcwd_chk)(path, size, room);
  if (result) sys_restore(result);
  return result;
}
FUNCTION(char *, get_current_dir_name, void) {
  char *result = NEXT(get_current_dir_name)();
  if (result) sys_restore(result);
  return result;
}

FUNCTION(int, inotify_add_watch, int fd, const char *path, uint32_t mask) {
  return NEXT(inotify_add_watch)(fd, HERE(path), mask);
}

/* --- what a file is */

#define STAT(name, type) \
  FUNCTION(int, name, const char *path, struct type *out) { return NEXT(name)(HERE(path), out); }
STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)
STAT(statfs, statfs)
STAT(statfs64, statfs64)
STAT(statvfs, statvfs)
STAT(statvfs64, statvfs64)

#define FSTATAT(name, type)                                                        \
  FUNCTION(int, name, int folder, const char *path, struct type *out, int flags) { \
    return NEXT(name)(folder, AT(folder, path), out, flags);                       \
  }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

/* What programs call that were built before release 2.33 of the C library. */
#define XSTAT(name, type)                                                \
  FUNCTION(int, name, int version, const char *path, struct type *out) { \
    return NEXT(name)(version, HERE(path), out);                         \
  }
XSTAT(__xstat, stat)
XSTAT(__lxstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat64, stat64)
#define FXSTATAT(name, type)                                                                    \
  FUNCTION(int, name, int version, int folder, const char *path, struct type *out, int flags) { \
    return NEXT(name)(version, folder, AT(folder, path), out, flags);                           \
  }
FXSTATAT(__fxstatat, stat)
FXSTATAT(__fxstatat64, stat64)

FUNCTION(int, statx, int folder, const char *path, int flags, unsigned mask, struct statx *out) {
  return NEXT(statx)(folder, AT(folder, path), flags, mask, out);
}

#define ACCESS(name) \
  FUNCTION(int, name, const char *path, int mode) { return NEXT(name)(HERE(path), mode); }
ACCESS(access)
ACCESS(eaccess)
ACCESS(euidaccess)
FUNCTION(int, faccessat, int folder, const char *path, int mode, int flags) {
  return NEXT(faccessat)(folder, AT(folder, path), mode, flags);
}

#define GETXATTR(name)                                                                         \
  FUNCTION(ssize_t, name, const char *path, const char *attribute, void *value, size_t size) { \
    return NEXT(name)(HERE(path), attribute, value, size);                                     \
  }
GETXATTR(getxattr)
GETXATTR(lgetxattr)
#define LISTXATTR(name)                                                \
  FUNCTION(ssize_t, name, const char *path, char *list, size_t size) { \
    return NEXT(name)(HERE(path), list, size);                         \
  }
LISTXATTR(listxattr)
LISTXATTR(llistxattr)

/* --- where a link leads */

FUNCTION(ssize_t, readlink, const char *path, char *out, size_t size) {
  return NEXT(readlink)(HERE(path), out, size);
}
FUNCTION(ssize_t, __readlink_chk, const char *path, char *out, size_t size, size_t room) {
  return NEXT(__readlink_chk)(HERE(path), out, size, room);
}
FUNCTION(ssize_t, readlinkat, int folder, const char *path, char *out, size_t size) {
  return NEXT(readlinkat)(folder, AT(folder, path), out, size);
}
FUNCTION(ssize_t, __readlinkat_chk, int folder, const char *path, char *out, size_t size,
         size_t room) {
  return NEXT(__readlinkat_chk)(folder, AT(folder, path), out, size, room);
}

/* A path of the tree would mean nothing to other processes, and nothing once this one has ended. */
FUNCTION(char *, realpath, const char *path, char *out) {
  char *result = NEXT(realpath)(HERE(path), out);
  if (result) sys_restore(result);
  return result;
}
FUNCTION(char *, __realpath_chk, const char *path, char *out, size_t room) {
  char *result = NEXT(__realpath_chk)(HERE(path), out, room);
  if (result) sys_restore(result);
  return result;
}
FUNCTION(char *, canonicalize_file_name, const char *path) {
  char *result = NEXT(canonicalize_file_name)(HERE(path));
  if (result) sys_restore(result);
  return result;
}

/* --- patterns and walks; the names that come out are those that went in */

static int may_match(const char *pattern) {
  return pattern && pattern[0] == '/' && pattern[1] && strchr("sd/.*?[{", pattern[1]);
}

/* glob(3) can be told to look by functions of one's own. */
static void *open_for_glob(const char *path) { return sys_opendir(path); }
static void close_for_glob(void *folder) { closedir(folder); }
static struct dirent *read_glob(void *folder) { return readdir(folder); }
static struct dirent64 *read_glob64(void *folder) { return readdir64(folder); }
#define GLOB(name, structure, stat_function, lstat_function)                            \
  FUNCTION(int, name, const char *pattern, int flags, int (*failed)(const char *, int), \
           structure *out) {                                                            \
    if (may_match(pattern) && !(flags & GLOB_ALTDIRFUNC)) {                             \
      flags |= GLOB_ALTDIRFUNC;                                                         \
      out->gl_opendir = open_for_glob;                                                  \
      out->gl_readdir = read_##name;                                                    \
      out->gl_closedir = close_for_glob;                                                \
      out->gl_stat = stat_function;                                                     \
      out->gl_lstat = lstat_function;                                                   \
    }                                                                                   \
    return NEXT(name)(pattern, flags, failed, out);                                     \
  }
GLOB(glob, glob_t, sys_stat, sys_lstat)
GLOB(glob64, glob64_t, sys_stat64, sys_lstat64)

/* The walker gets paths of the tree; the program's function gets what they stand for. */
static __thread void *visitor;
static const char *shown(const char *path, char *room) {
  return strlen(path) < SYS_ROOM && sys_restore(strcpy(room, path)) ? room : path;
}
#define FTW(name, status)                                                            \
  typedef int visitor_##name(const char *, const struct status *, int);              \
  static int visit_##name(const char *path, const struct status *st, int flag) {     \
    char room[SYS_ROOM];                                                             \
    return ((visitor_##name *)visitor)(shown(path, room), st, flag);                 \
  }                                                                                  \
  FUNCTION(int, name, const char *path, visitor_##name *function, int descriptors) { \
    const char *where = HERE(path);                                                  \
    if (where == path) return NEXT(name)(path, function, descriptors);               \
    void *before = visitor; /* a walk within a walk */                               \
    visitor = (void *)function;                                                      \
    int result = NEXT(name)(where, visit_##name, descriptors);                       \
    visitor = before;                                                                \
    return result;                                                                   \
  }
FTW(ftw, stat)
FTW(ftw64, stat64)

#define NFTW(name, status)                                                                       \
  typedef int visitor_##name(const char *, const struct status *, int, struct FTW *);            \
  static int visit_##name(const char *path, const struct status *st, int flag, struct FTW *at) { \
    char room[SYS_ROOM];                                                                         \
    const char *seen = shown(path, room);                                                        \
    struct FTW of_seen = {at->base - (int)(strlen(path) - strlen(seen)), at->level};             \
    return ((visitor_##name *)visitor)(seen, st, flag, &of_seen);                                \
  }                                                                                              \
  FUNCTION(int, name, const char *path, visitor_##name *function, int descriptors, int flags) {  \
    const char *where = HERE(path);                                                              \
    if (where == path) return NEXT(name)(path, function, descriptors, flags);                    \
    void *before = visitor;                                                                      \
    visitor = (void *)function;                                                                  \
    int result = NEXT(name)(where, visit_##name, descriptors, flags);                            \
    visitor = before;                                                                            \
    return result;                                                                               \
  }
NFTW(nftw, stat)
NFTW(nftw64, stat64)
