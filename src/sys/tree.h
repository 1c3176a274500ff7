/* SPDX-License-Identifier: Apache-2.0 */
/* From a path of a call to the path that the C library gets. */
#ifndef ADVERB_SYS_TREE_H
#define ADVERB_SYS_TREE_H

#include <limits.h>

/* Bytes for a path in the tree: its folder and what stands below. */
enum { SYS_ROOM = 2 * PATH_MAX };

/* Not 0 while relative paths may lead into the tree. */
extern volatile int sys_inside;

/* The path to hand on: `path` itself, or another one in `room`.  Keeps errno. */
const char *sys_look(int folder, const char *path, char *room);
/* After chdir(path) has succeeded. */
void sys_moved(const char *path);

#endif
