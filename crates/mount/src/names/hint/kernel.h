/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The few members of the kernel's structures that are read, by name: the loader moves every access
 * to where the running kernel has it (CO-RE). And the few helpers that are called, by number, as
 * in include/uapi/linux/bpf.h. This stands in for a generated vmlinux.h and for libbpf's headers. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_F_MMAPABLE = 1 << 10 };
enum { BPF_FIELD_BYTE_OFFSET = 0, BPF_FIELD_EXISTS = 2 };

#define FIELD(info, type, member) __builtin_preserve_field_info(((type *)0)->member, info)

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static long (*bpf_probe_read_user_str)(void *to, __u32 size, const void *from) = (void *)114;
static long (*bpf_probe_read_kernel_str)(void *to, __u32 size, const void *from) = (void *)115;

struct raw_tracepoint_args {
	__u64 args[1];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/uapi/linux/fuse.h */
struct fuse_in_header {
	__u32 opcode;
	__u64 unique;
	__u64 nodeid;
	__u32 pid;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_flags;
};

/* The mounts of a file system: since Linux 6.18, and before. */
struct list_head {
	struct list_head *next;
};

struct vfsmount {
	int mnt_flags;
};

struct mount {
	struct vfsmount mnt;
};

struct super_block___since {
	struct mount *s_mounts;
};

struct mount___since {
	struct mount *mnt_next_for_sb;
};

struct super_block___before {
	struct list_head s_mounts;
};

struct mount___before {
	struct list_head mnt_instance;
};

/* fs/fuse/fuse_i.h */
struct fuse_mount {
	struct super_block *sb;
};

struct fuse_in_arg {
	unsigned int size;
	const void *value;
};

struct fuse_args {
	struct fuse_in_arg in_args[2];
};

struct fuse_req {
	struct {
		struct fuse_in_header h;
	} in;
	struct fuse_mount *fm;
	struct fuse_args *args;
};

struct qstr {
	const unsigned char *name;
};

struct rw_semaphore {
	struct {
		long long counter;
	} owner;
};

struct inode {
	struct rw_semaphore i_rwsem;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
};

/* Where short names are: before Linux 6.14, and since. */
struct dentry___before {
	unsigned char d_iname[1];
};

union shortname_store {
	unsigned char string[1];
};

struct dentry___since {
	union shortname_store d_shortname;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

/* fs/namei.c */
struct filename {
	const char *name;
	const char *uptr;
};

struct nameidata {
	struct path path;
	struct qstr last;
	unsigned int flags;
	unsigned int depth;
	struct filename *name;
};

struct cred;

struct thread_info {
	unsigned long flags;
	__u32 status;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	const struct cred *real_cred;
	const struct cred *cred;
	struct nameidata *nameidata;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long di, si, dx, r10, r8, orig_ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	__u64 regs[31];
	__u64 orig_x0;
	int syscallno;
};
#else
#error "no registers are known for this architecture"
#endif

#pragma clang attribute pop

static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static struct pt_regs *(*bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
