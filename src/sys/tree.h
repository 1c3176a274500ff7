/* SPDX-License-Identifier: Apache-2.0 */
/* From a path of a call to the path that the C library gets. */
#ifndef ADVERB_SYS_TREE_H
#define ADVERB_SYS_TREE_H

#include <limits.h>

/* Bytes for a path in the tree: its folder and what stands below. */
enum { SYS_ROOM = PATH_MAX + 512 };

/* Not 0 while relative paths may lead into the tree. */
extern volatile int sys_inside;

/* Does the path name something of ours?  If it is relative, and that may lead into the tree, brings
   the tree up to date; then the answer is no, since the path may stay as it is. */
int sys_is_ours(int folder, const char *path);
/* The path to hand on for one that is ours, in `room`.  Both keep errno. */
const char *sys_look(int folder, const char *path, char *room);
/* After chdir(path) has succeeded. */
void sys_moved(const char *path);

#endif
