/* SPDX-License-Identifier: Apache-2.0 */
/* Which paths are those of RDMA devices, however they are spelled.  Nothing here allocates, calls
   the system or touches errno. */
#ifndef ADVERB_SYS_PATH_H
#define ADVERB_SYS_PATH_H

#include <limits.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sys_place {
  SYS_ELSEWHERE, /* as it is */
  SYS_LEFT,      /* came through a folder of ours and left it by `..` */
  SYS_TREE,  /* /sys/class/infiniband, infiniband_verbs or infiniband_mad, /dev/infiniband, or below
              */
  SYS_BEHIND /* a folder of one of those names below another device, or below that */
};

/* What an absolute path names.  Unless it is elsewhere, `out` (PATH_MAX bytes) has it without
   `//`, `/./`, and `..` as far as that leads out of a folder and not out of a symbolic link. */
enum sys_place sys_classify(const char *path, char *out);

/* If the path lies in the tree of some process (adverb-UID/sysfs-...), turns it in place into what
   that stands for, and returns 1. */
int sys_restore(char *path);

/* May the path be one to classify?  A few compares, for every call of every program. */
static inline int sys_candidate(const char *p) {
  if (p[0] != '/') return 0;
  if (p[1] == 's') return p[2] == 'y' && p[3] == 's' && p[4] == '/';
  if (p[1] == 'd')
    return p[2] == 'e' && p[3] == 'v' && p[4] == '/' && (p[5] == 'i' || p[5] == '/' || p[5] == '.');
  return p[1] == '/' || p[1] == '.';
}

#ifdef __cplusplus
}
#endif
#endif
