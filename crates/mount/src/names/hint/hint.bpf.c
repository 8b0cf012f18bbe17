/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Notes what the calling thread is doing when FUSE sends a LOOKUP.
 *
 * Runs in that thread, before the daemon can see the request. One note for each thread id modulo
 * NOTES: a thread waits for its request, so it has one at a time. Whoever collides with another
 * thread, or meets anything unexpected, leaves no note, and the daemon does a real lookup.
 * `struct note` and the constants are also in notes.rs and bpf.rs. The notes take 4 MiB a mount. */
#include "kernel.h"

#define NOTES 4096
#define TEXT 464
#define BEFORE 16
#define FUSE_LOOKUP 1
#define ARGS 5
#define SYSCALLS 512
#define PATH_MAX 4096

/* include/linux/sched.h: threads that no syscall describes. */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000

/* include/linux/fs.h, include/linux/mount.h */
#define SB_RDONLY 1
#define MNT_READONLY 0x40
#define MOUNTS 16

enum walk { WALK_NONE, WALK_HERE, WALK_SECOND };	/* the last: of the syscall's second path */

enum bits {
	FIRST = 1,		/* walk: no name goes before this one in the path */
	READ_ONLY = 2,		/* nothing can be made, perhaps */
};

struct note {
	__u64 sequence;		/* odd while this is written */
	__u64 unique;		/* of the request; 0: the kernel gives it later */
	__u64 nodeid;
	__u64 args[ARGS];	/* of the syscall */
	__u32 tid;		/* as the request has it */
	__u32 syscall;
	__u32 walk;		/* enum walk */
	__u32 flags;		/* of the walk */
	__u32 depth;		/* symlinks that the walk is inside of */
	__u32 text_len;		/* with the NUL; 0: unreadable */
	__u32 second_len;
	__u32 bits;		/* enum bits */
	char text[TEXT];	/* walk: from this component on; else the syscall's first path */
	char second[TEXT];	/* walk: the syscall's other path, if it has two; else its second */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NOTES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct note);
} notes SEC(".maps");

/* Set by the loader. */
const volatile __u32 device = 0;		/* of the mount, as the kernel encodes it */
/* For each syscall whose last component is looked up without a walk: 1 + the number of the
 * argument that is its first path, and in the upper four bits the same for the second. */
const volatile __u8 path_args[SYSCALLS] = {};

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

static __attribute__((always_inline)) int is_compat(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return task->thread_info.status & 0x2;		/* TS_COMPAT */
#else
	return task->thread_info.flags & (1 << 22);	/* TIF_32BIT */
#endif
}

static __attribute__((always_inline)) void note_syscall(struct note *note, struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	note->syscall = regs->orig_ax;
	note->args[0] = regs->di;
	note->args[1] = regs->si;
	note->args[2] = regs->dx;
	note->args[3] = regs->r10;
	note->args[4] = regs->r8;
#else
	note->syscall = regs->syscallno;
	note->args[0] = regs->orig_x0;
	note->args[1] = regs->regs[1];
	note->args[2] = regs->regs[2];
	note->args[3] = regs->regs[3];
	note->args[4] = regs->regs[4];
#endif
}

/* Where the noted syscall has paths whose last component is looked up without a walk. */
static __attribute__((always_inline)) __u32 paths_of(struct note *note)
{
	return note->syscall < SYSCALLS ? path_args[note->syscall] : 0;
}

/* Copies the path that argument `which` - 1 points to. */
static __attribute__((always_inline)) __u32 copy_path(struct note *note, char *to, __u32 which)
{
	if (which == 0 || which > ARGS)
		return 0;
	long len = bpf_probe_read_user_str(to, TEXT, (void *)note->args[which - 1]);
	return len > 0 ? len : 0;
}

/* Whether nothing but `/`, `.` and `..` goes before the walk's component. */
static __attribute__((always_inline)) int is_first(struct nameidata *walk)
{
	const char *path = walk->name->name;
	unsigned long before = (unsigned long)walk->last.name - (unsigned long)path;
	char text[BEFORE] = {};
	int dots = 0;

	if (walk->depth || before > BEFORE)
		return 0;
	if (bpf_probe_read_kernel(text, BEFORE, path))
		return 0;
	for (unsigned long i = 0; i < BEFORE && i < before; i++) {
		if (text[i] != '/' && text[i] != '.')
			return 0;
		/* Three of them are a name. */
		dots = text[i] == '.' ? dots + 1 : 0;
		if (dots > 2)
			return 0;
	}
	return 1;
}

/* Whether a walk is that of the second of a syscall's two paths. */
static __attribute__((always_inline)) int is_second(struct note *note, struct nameidata *walk,
						    __u32 paths)
{
	__u32 first = paths & 15, second = paths >> 4;

	return second && first && first <= ARGS &&
	       (__u64)walk->name->uptr != note->args[first - 1];
}

static __attribute__((always_inline)) int is_read_only_mount(struct vfsmount *mount)
{
	int flags;

	return READ(flags, mount->mnt_flags) || flags & MNT_READONLY;
}

/* Whether one of a file system's mounts is read-only, or there are too many of them to tell. Nothing is
 * locked: while mounts come and go, this may say either. */
static __attribute__((always_inline)) int has_read_only_mount(struct super_block *sb)
{
	struct mount *mount;

	if (FIELD(BPF_FIELD_EXISTS, struct mount___since, mnt_next_for_sb)) {
		if (READ(mount, ((struct super_block___since *)sb)->s_mounts))
			return 1;
		for (int i = 0; i < MOUNTS && mount; i++) {
			if (is_read_only_mount(&mount->mnt))
				return 1;
			if (READ(mount, ((struct mount___since *)mount)->mnt_next_for_sb))
				return 1;
		}
		return mount != 0;
	}
	struct list_head *head = (void *)sb + FIELD(BPF_FIELD_BYTE_OFFSET,
						    struct super_block___before, s_mounts);
	struct list_head *at = head;

	for (int i = 0; i < MOUNTS; i++) {
		if (READ(at, at->next))
			return 1;
		if (at == head)
			return 0;
		mount = (void *)at - FIELD(BPF_FIELD_BYTE_OFFSET, struct mount___before, mnt_instance);
		if (is_read_only_mount(&mount->mnt))
			return 1;
	}
	return 1;
}

/* Whether nothing can be made: by a walk, through its mount; without one, through any, since the thread's
 * own is not known. Of a name that is there the kernel says so before it says that. */
static __attribute__((always_inline)) int is_read_only(struct super_block *sb,
						       struct nameidata *walk)
{
	unsigned long flags;

	if (READ(flags, sb->s_flags) || flags & SB_RDONLY)
		return 1;
	return walk ? is_read_only_mount(walk->path.mnt) : has_read_only_mount(sb);
}

static __attribute__((always_inline)) void note_walk(struct note *note, struct task_struct *task,
						struct super_block *sb)
{
	struct nameidata *walk = task->nameidata;
	__u32 paths = paths_of(note);
	int second;
	long len;

	if (walk) {
		second = is_second(note, walk, paths);
		note->walk = second ? WALK_SECOND : WALK_HERE;
		note->flags = walk->flags;
		note->depth = walk->depth;
		note->bits = is_first(walk) ? FIRST : 0;
		len = bpf_probe_read_kernel_str(note->text, TEXT, walk->last.name);
		note->text_len = len > 0 ? len : 0;
		note->second_len = copy_path(note, note->second, second ? paths & 15 : paths >> 4);
	} else {
		note->walk = WALK_NONE;
		note->flags = note->depth = note->bits = 0;
		note->text_len = copy_path(note, note->text, paths & 15);
		note->second_len = copy_path(note, note->second, paths >> 4);
	}
	if (is_read_only(sb, walk))
		note->bits |= READ_ONLY;
}

/* The name that is looked up. */
static __attribute__((always_inline)) const void *name_of(struct fuse_req *req)
{
	struct fuse_args *args;
	const void *name;
	__u32 size;

	/* Since Linux 6.15 the first argument is empty. */
	if (READ(args, req->args) || READ(size, args->in_args[0].size))
		return 0;
	if (size ? READ(name, args->in_args[0].value) : READ(name, args->in_args[1].value))
		return 0;
	return name;
}

/* Whether a name is part of the kernel's copy of a path of the syscall, as names are since Linux
 * 6.14 that the kernel has already and asks about again. A file system stacked on this one asks
 * for names of its own. The copy and what describes it are in one page; of a very long path they
 * are not, and this says no. */
static __attribute__((always_inline)) int is_in_path(struct note *note, const void *name)
{
	struct filename *path = (void *)((unsigned long)name & ~(PATH_MAX - 1UL));
	__u32 paths = paths_of(note), first = paths & 15, second = paths >> 4;
	const void *text, *from;

	if (READ(text, path->name) || READ(from, path->uptr))
		return 0;
	if (text < (void *)path || text > name)
		return 0;
	return (first && first <= ARGS && (__u64)from == note->args[first - 1]) ||
	       (second && second <= ARGS && (__u64)from == note->args[second - 1]);
}

/* Whether the thread has locked the directory of a name for writing, as the kernel does after a
 * walk and a file system stacked on this one does not. Found from the name's place in its dentry:
 * of a long name this says no. */
static __attribute__((always_inline)) int has_locked_directory(struct task_struct *task,
							       const void *name)
{
	const void *found;
	struct dentry *entry;
	struct inode *dir;
	__u64 owner;

	if (FIELD(BPF_FIELD_EXISTS, struct dentry___since, d_shortname))
		entry = (void *)name - FIELD(BPF_FIELD_BYTE_OFFSET, struct dentry___since, d_shortname);
	else
		entry = (void *)name - FIELD(BPF_FIELD_BYTE_OFFSET, struct dentry___before, d_iname);
	if (READ(found, entry->d_name.name) || found != name)
		return 0;
	if (READ(entry, entry->d_parent) || READ(dir, entry->d_inode))
		return 0;
	/* Of the lower bits one says that a reader has it, one how to wait. */
	return !READ(owner, dir->i_rwsem.owner.counter) && (owner & ~2ULL) == (__u64)task;
}

/* Whether the request comes straight from the syscall, and not through a file system stacked on
 * this one: that has its own walk, and looks up without one or with its mounter's rights. */
static __attribute__((always_inline)) int is_direct(struct note *note, struct task_struct *task,
						    struct fuse_req *req, struct super_block *sb)
{
	struct nameidata *walk = task->nameidata;
	const void *name;

	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD) || is_compat(task))
		return 0;
	if (walk)
		return walk->path.dentry->d_sb == sb;
	if (task->cred != task->real_cred)
		return 0;
	name = name_of(req);
	return name && (has_locked_directory(task, name) || is_in_path(note, name));
}

SEC("raw_tp/fuse_request_send")
int on_send(struct raw_tracepoint_args *ctx)
{
	struct fuse_req *req = (void *)ctx->args[0];
	struct fuse_mount *mount;
	struct super_block *sb;
	__u32 opcode, dev, tid, key;

	if (READ(opcode, req->in.h.opcode) || opcode != FUSE_LOOKUP)
		return 0;
	if (READ(mount, req->fm) || READ(sb, mount->sb) || READ(dev, sb->s_dev) || dev != device)
		return 0;
	READ(tid, req->in.h.pid);
	key = tid & (NOTES - 1);
	struct note *note = bpf_map_lookup_elem(&notes, &key);
	if (!note)
		return 0;
	/* Fully ordered, as every atomic operation here that returns a value. */
	__u64 sequence = note->sequence;
	if (sequence & 1)
		return 0;
	if (__sync_val_compare_and_swap(&note->sequence, sequence, sequence + 1) != sequence)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	note_syscall(note, bpf_task_pt_regs(task));
	note->tid = tid;
	READ(note->unique, req->in.h.unique);
	READ(note->nodeid, req->in.h.nodeid);
	if (is_direct(note, task, req, sb))
		note_walk(note, task, sb);
	else
		note->tid = 0;
	__sync_fetch_and_add(&note->sequence, 1);
	return 0;
}

/* The helpers are open to programs under a licence compatible with the kernel's only. */
char LICENSE[] SEC("license") = "GPL";
