/* Walks through the calls that the preload library serves, on the tree of tests/support, and prints
 * what they say. Its output on the tree itself and on a dataset of it must be the same.
 *
 * calls ROOT */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;
static char root[PATH_MAX];

static const char *name_of(int error) {
    return error ? strerrorname_np(error) : "-";
}

/* Says what an expression gives. */
#define SAY(expr)                                                                                  \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long long got_ = (long long)(expr);                                                        \
        int errno_ = got_ < 0 ? errno : 0;                                                         \
        printf("%d %s = %lld %s\n", __LINE__, #expr, got_, name_of(errno_));                       \
    } while (0)

/* The same of a pointer. */
#define SAY_P(expr)                                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        const void *got_ = (expr);                                                                 \
        int errno_ = got_ ? 0 : errno;                                                             \
        printf("%d %s = %s %s\n", __LINE__, #expr, got_ ? "something" : "null", name_of(errno_));  \
    } while (0)

/* Of a new descriptor, which is closed. */
#define SAY_FD(expr)                                                                               \
    do {                                                                                           \
        errno = 0;                                                                                 \
        int got_ = (expr);                                                                         \
        int errno_ = got_ < 0 ? errno : 0;                                                         \
        printf("%d %s = %s %s\n", __LINE__, #expr, got_ < 0 ? "no" : "fd", name_of(errno_));       \
        if (got_ >= 0)                                                                             \
            close(got_);                                                                           \
    } while (0)

/* A path without what the root is called. */
static const char *below(const char *path) {
    static char out[2 * PATH_MAX];
    size_t len = strlen(root);
    if (path == NULL)
        return "null";
    snprintf(out, sizeof out, "%s%s", strncmp(path, root, len) ? "" : "ROOT",
             strncmp(path, root, len) ? path : path + len);
    return out;
}

static void say_stat(const char *what, const struct stat *st) {
    int is_dir = S_ISDIR(st->st_mode), is_link = S_ISLNK(st->st_mode);
    printf("%s: mode %o nlink %lu uid %u gid %u size %lld blocks %lld mtime %lld.%09ld\n", what,
           st->st_mode, (unsigned long)st->st_nlink, st->st_uid, st->st_gid,
           is_dir ? 0 : (long long)st->st_size, is_dir || is_link ? 0 : (long long)st->st_blocks,
           (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
}

static unsigned long sum(const void *data, size_t len) {
    unsigned long hash = 5381;
    for (size_t n = 0; n < len; n++)
        hash = hash * 33 + ((const unsigned char *)data)[n];
    return hash;
}

static const char *const PATHS[] = {
    "plain",     "plain/",       "plain/.",      "plain/x",      "dir",         "dir/",
    "dir/.",     "dir/..",       "dir/../plain", "missing",      "missing/x",   "missing/",
    "link",      "link/",        "to-dir",       "to-dir/",      "to-dir/inner", "dangling",
    "dangling/", "loop",         "absolute",     "outside",      "closed",      "closed/inner",
    "secret",    "empty",        "nothing",      "pipe",         ".",           "./",
    ".//plain",  ".//dir//inner", "through/inner", "hard",        "small",       "program",
};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static void paths(void) {
    for (size_t n = 0; n < COUNT(PATHS); n++) {
        const char *path = PATHS[n];
        struct stat st;
        struct statx stx;
        char text[PATH_MAX];
        printf("-- %s\n", path);
        if (stat(path, &st) == 0)
            say_stat("stat", &st);
        else
            printf("stat: %s\n", name_of(errno));
        if (lstat(path, &st) == 0)
            say_stat("lstat", &st);
        else
            printf("lstat: %s\n", name_of(errno));
        SAY(fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW));
        SAY(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx));
        if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx) == 0 && !S_ISDIR(stx.stx_mode))
            printf("statx: %o %llu %llu\n", stx.stx_mode, stx.stx_size, stx.stx_blocks);
        /* By its number, as Node.js does. */
        SAY(syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx));
        if (syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx) == 0)
            printf("syscall: %o %llu\n", stx.stx_mode, S_ISDIR(stx.stx_mode) ? 0 : stx.stx_size);
        SAY(access(path, F_OK));
        SAY(access(path, R_OK));
        SAY(access(path, W_OK));
        SAY(access(path, X_OK));
        SAY(eaccess(path, R_OK | W_OK | X_OK));
        SAY(faccessat(AT_FDCWD, path, R_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW));
        ssize_t len = readlink(path, text, sizeof text);
        printf("readlink: %.*s %s\n", (int)(len < 0 ? 0 : len), text, len < 0 ? name_of(errno) : "");
        SAY(readlink(path, text, 2));
        char *real = realpath(path, NULL);
        printf("realpath: %s %s\n", below(real), real ? "" : name_of(errno));
        free(real);
        if (!S_ISFIFO(st.st_mode)) {
            SAY_FD(open(path, O_RDONLY));
            SAY_FD(open(path, O_WRONLY));
            SAY_FD(open(path, O_RDWR));
            SAY_FD(open(path, O_RDONLY | O_NOFOLLOW));
            SAY_FD(open(path, O_RDONLY | O_DIRECTORY));
            SAY_FD(open(path, O_RDONLY | O_CREAT, 0600));
            SAY_FD(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
            SAY_FD(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600));
            SAY_FD(openat(AT_FDCWD, path, O_PATH | O_NOFOLLOW));
            SAY_FD(creat(path, 0600));
            FILE *file = fopen(path, "r");
            printf("fopen: %s\n", file ? "file" : name_of(errno));
            if (file) {
                printf("getc: %d\n", getc(file));
                fclose(file);
            }
            file = fopen(path, "a+");
            printf("fopen a+: %s\n", file ? "file" : name_of(errno));
        }
        DIR *dir = opendir(path);
        printf("opendir: %s\n", dir ? "dir" : name_of(errno));
        if (dir)
            closedir(dir);
        SAY(chdir(path));
        if (chdir(root))
            abort();
        SAY(chmod(path, 0600));
        SAY(fchmodat(AT_FDCWD, path, 0600, 0));
        SAY(chown(path, 0, 0));
        SAY(lchown(path, 0, 0));
        SAY(utimensat(AT_FDCWD, path, NULL, 0));
        SAY(utimes(path, NULL));
        SAY(utime(path, NULL));
        SAY(truncate(path, 0));
        SAY(truncate(path, -1));
        SAY(unlink(path));
        SAY(rmdir(path));
        SAY(unlinkat(AT_FDCWD, path, AT_REMOVEDIR));
        SAY(mkdir(path, 0700));
        SAY(mkdirat(AT_FDCWD, path, 0700));
        SAY(mkfifo(path, 0700));
        SAY(symlink("x", path));
        SAY(link("plain", path));
        SAY(link(path, "new"));
        SAY(rename(path, "new"));
        SAY(rename("plain", path));
        SAY(setxattr(path, "user.x", "y", 1, 0));
        SAY(removexattr(path, "user.label"));
        SAY(getxattr(path, "user.label", text, sizeof text));
        SAY(lgetxattr(path, "user.label", text, 0));
        SAY(listxattr(path, text, sizeof text));
        SAY(getxattr(path, "user.label", text, 1));
        SAY(getxattr(path, "user.none", text, 1));
        struct statvfs vfs;
        SAY(statvfs(path, &vfs));
    }
}

static void whole_file(const char *path) {
    if (access(path, R_OK))
        return;
    int fd = open(path, O_RDONLY);
    struct stat st;
    printf("== %s %d\n", path, fstat(fd, &st));
    say_stat("fstat", &st);
    char *data = malloc(st.st_size + 100);
    SAY(read(fd, data, st.st_size + 100));
    printf("sum %lx\n", sum(data, st.st_size));
    SAY(read(fd, data, 10));
    SAY(lseek(fd, 0, SEEK_CUR) == st.st_size);
    SAY(lseek(fd, -3, SEEK_END) == st.st_size - 3);
    SAY(read(fd, data, 10));
    SAY(lseek(fd, -1, SEEK_SET));
    SAY(lseek(fd, -st.st_size - 1, SEEK_CUR));
    SAY(lseek(fd, 10, SEEK_END) == st.st_size + 10);
    SAY(read(fd, data, 10));
    SAY(lseek(fd, 0, SEEK_DATA));
    SAY(lseek(fd, 0, SEEK_HOLE) == st.st_size);
    SAY(lseek(fd, st.st_size, SEEK_DATA));
    SAY(lseek(fd, LLONG_MAX, SEEK_CUR));
    SAY(lseek(fd, 0, 99));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(pread(fd, data, 5, 1));
    SAY(pread(fd, data, 5, -1));
    SAY(pread(fd, data, 5, st.st_size));
    SAY(pread(fd, data, 5, st.st_size - 2));
    SAY(pread(fd, data, 5, 1LL << 60));
    struct iovec iov[3] = {{data, 2}, {data + 2, 0}, {data + 2, 7}};
    SAY(readv(fd, iov, 3));
    SAY(preadv(fd, iov, 3, st.st_size - 4));
    SAY(preadv2(fd, iov, 3, -1, 0));
    SAY(preadv2(fd, iov, 3, 0, 0));
    SAY(lseek(fd, 0, SEEK_CUR));
    int left = -1;
    SAY(ioctl(fd, FIONREAD, &left));
    printf("left %d\n", left);
    SAY(write(fd, data, 1));
    SAY(pwrite(fd, data, 1, 0));
    SAY(ftruncate(fd, 0));
    SAY(fchmod(fd, 0600));
    SAY(fchown(fd, 0, 0));
    SAY(futimens(fd, NULL));
    SAY(fsetxattr(fd, "user.x", "y", 1, 0));
    SAY(fremovexattr(fd, "user.x"));
    SAY(flistxattr(fd, data, 100));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED));
    SAY(readahead(fd, 0, 10));
    SAY(fcntl(fd, F_GETFL));
    SAY(fcntl(fd, F_GETFD));
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    SAY(fcntl(fd, F_SETLK, &lock));
    lock.l_type = F_WRLCK;
    SAY(fcntl(fd, F_SETLK, &lock));
    SAY(flock(fd, LOCK_SH));
    SAY(flock(fd, LOCK_EX));
    SAY(fsync(fd));
    SAY(isatty(fd));
    SAY(fchdir(fd));
    SAY(getdents64(fd, data, 100));

    /* Copies share the position, also with children. */
    int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 100), second = dup2(fd, 77);
    SAY(second);
    SAY(high >= 100 && fcntl(high, F_GETFD) == FD_CLOEXEC);
    SAY(lseek(copy, 3, SEEK_SET));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(lseek(high, 0, SEEK_CUR));
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        _exit(read(77, &byte, 1) == 1 ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    SAY(status);
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    SAY(read(fd, data, 1));
    SAY(fstat(fd, &st));
    SAY(read(copy, data, 4));
    SAY(dup2(copy, copy) == copy);
    SAY(close_range(high, high, 0));
    SAY(fcntl(high, F_GETFD));
    SAY(dup3(copy, second, O_CLOEXEC));
    SAY(lseek(second, 0, SEEK_CUR));
    close(second);
    close(copy);
    free(data);
}

static sigjmp_buf back;

static void caught(int signal) {
    siglongjmp(back, signal);
}

static void touch(const char *at) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        int byte = *(volatile const char *)at;
        printf("byte %d\n", byte);
    } else {
        printf("signal %d\n", signal);
    }
}

static void mapped(const char *path) {
    if (access(path, R_OK))
        return;
    int fd = open(path, O_RDONLY);
    struct stat st;
    fstat(fd, &st);
    size_t page = 4096, len = st.st_size, pages = (len + page - 1) / page * page;
    printf("== map %s\n", path);
    char *at = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    printf("sum %lx\n", sum(at, len));
    int zeros = 1;
    for (size_t n = len; n < pages; n++)
        zeros &= at[n] == 0;
    SAY(zeros);
    SAY(munmap(at, len));
    at = mmap(NULL, len + 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    printf("sum %lx\n", sum(at, pages));
    at[0] ^= 1;
    at[len - 1] ^= 1;
    touch(at + pages - 1);
    touch(at + pages);
    touch(at + pages + 2 * page);
    SAY(madvise(at, len, MADV_DONTNEED));
    printf("sum %lx\n", sum(at, pages));
    SAY(munmap(at, len + 3 * page));
    if (len > page) {
        at = mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, page);
        printf("sum %lx\n", sum(at, page > len - page ? len - page : page));
        munmap(at, page);
    }
    at = mmap(NULL, 16 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY(mmap(at + 2 * page, len < 8 * page ? len : 8 * page, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == at + 2 * page);
    touch(at + 2 * page);
    touch(at + page);
    munmap(at, 16 * page);
    SAY((long)mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    SAY((long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0));
    SAY((long)mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 1));
    at = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE, fd, pages);
    touch(at);
    munmap(at, 2 * page);
    close(fd);
    SAY((long)mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0));
}

/* As programs do it: between two file systems, by reading. */
static ssize_t copy_range(int from, off_t *at, int to, size_t len) {
    /* By its number, too, as Node.js does. */
    ssize_t copied = at ? copy_file_range(from, at, to, NULL, len, 0)
                        : syscall(SYS_copy_file_range, from, at, to, NULL, len, 0);
    if (copied >= 0 || errno != EXDEV)
        return copied;
    char *data = malloc(len);
    copied = at ? pread(from, data, len, *at) : read(from, data, len);
    if (at)
        *at += copied;
    copied = write(to, data, copied);
    free(data);
    return copied;
}

static void copied(const char *path, const char *temp) {
    if (access(path, R_OK))
        return;
    int from = open(path, O_RDONLY), to = open(temp, O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct stat st;
    fstat(from, &st);
    printf("== copy %s\n", path);
    off_t at = 3;
    SAY(sendfile(to, from, &at, 10));
    printf("at %lld\n", (long long)at);
    SAY(lseek(from, 0, SEEK_CUR));
    SAY(sendfile(to, from, NULL, st.st_size + 1000) == st.st_size);
    SAY(lseek(from, 0, SEEK_CUR) == st.st_size);
    SAY(sendfile(to, from, NULL, 10));
    SAY(lseek(from, 2, SEEK_SET));
    SAY(copy_range(from, NULL, to, st.st_size) == st.st_size - 2);
    SAY(copy_range(from, NULL, to, 10));
    at = st.st_size - 5;
    SAY(copy_range(from, &at, to, 10));
    SAY(at == st.st_size);
    int ends[2];
    SAY(pipe(ends));
    at = 1;
    SAY(splice(from, &at, ends[1], NULL, 4, 0));
    printf("at %lld\n", (long long)at);
    char data[10];
    SAY(read(ends[0], data, 10));
    SAY(write(to, data, 4));
    fstat(to, &st);
    char *all = malloc(st.st_size);
    SAY(pread(to, all, st.st_size, 0) == st.st_size);
    printf("sum %lx\n", sum(all, st.st_size));
    free(all);
    SAY(ioctl(to, 0x40049409, from) < 0);
    close(ends[0]), close(ends[1]), close(from), close(to);
    unlink(temp);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void listed(DIR *dir) {
    char *names[1000];
    int count = 0;
    struct dirent *entry;
    while (errno = 0, (entry = readdir(dir)) != NULL) {
        char line[400];
        snprintf(line, sizeof line, "%s type %d", entry->d_name, entry->d_type);
        names[count++] = strdup(line);
    }
    printf("end %s\n", name_of(errno));
    qsort(names, count, sizeof *names, by_name);
    for (int n = 0; n < count; n++) {
        puts(names[n]);
        free(names[n]);
    }
}

static int no_dots(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static char *visits[1000];
static int visit_count;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at) {
    char line[PATH_MAX + 100];
    snprintf(line, sizeof line, "%s %d %o base %d level %d", path, kind, kind == FTW_NS ? 0 : st->st_mode,
             at->base, at->level);
    visits[visit_count++] = strdup(line);
    return 0;
}

static int visit_old(const char *path, const struct stat *st, int kind) {
    struct FTW at = {0, 0};
    return visit(path, st, kind, &at);
}

static void visited(int got) {
    printf("walk %d\n", got);
    qsort(visits, visit_count, sizeof *visits, by_name);
    for (int n = 0; n < visit_count; n++) {
        puts(visits[n]);
        free(visits[n]);
    }
    visit_count = 0;
}

/* Random calls on one file; what they give is summed up. */
static void random_calls(const char *path, unsigned seed) {
    if (access(path, R_OK))
        return;
    static char data[40000];
    struct stat st;
    unsigned long all = seed;
    int fd = open(path, O_RDONLY), other = dup(fd);
    fstat(fd, &st);
    for (int n = 0; n < 1000; n++) {
        long at = rand_r(&seed) % (st.st_size + 9000), len = rand_r(&seed) % sizeof data, got = 0;
        struct iovec iov[2] = {{data, len / 3}, {data + len / 3, len - len / 3}};
        errno = 0;
        switch (rand_r(&seed) % 9) {
        case 0: got = lseek(fd, at, SEEK_SET); break;
        case 1: got = lseek(other, at - st.st_size / 2, SEEK_CUR); break;
        case 2: got = lseek(fd, -at, SEEK_END); break;
        case 3: got = lseek(fd, at, rand_r(&seed) % 2 ? SEEK_DATA : SEEK_HOLE); break;
        case 4: got = read(other, data, len); break;
        case 5: got = readv(fd, iov, 2); break;
        case 6: got = preadv(fd, iov, 2, at); break;
        case 7: got = pread(fd, data, len, at); break;
        default: {
            long page = at / 4096 * 4096;
            char *map = mmap(NULL, len + 1, PROT_READ, MAP_PRIVATE, fd, page);
            long pages = (st.st_size + 4095) / 4096 * 4096 - page;
            got = map == MAP_FAILED ? -1 : 0;
            for (long byte = 0; byte <= len && byte < pages && map != MAP_FAILED; byte++)
                got = got * 33 + map[byte];
            munmap(map, len + 1);
            len = 0;
        }
        }
        all = all * 33 + got;
        all = all * 33 + (got < 0 ? errno : 0);
        all = all * 33 + lseek(fd, 0, SEEK_CUR);
        all = all * 33 + sum(data, sizeof data);
    }
    printf("random calls on %s: %lx\n", path, all);
    close(fd), close(other);
}

static void directories(void) {
    puts("== directories");
    DIR *dir = opendir(".");
    listed(dir);
    rewinddir(dir);
    readdir(dir);
    long at = telldir(dir);
    char *name = strdup(readdir(dir)->d_name);
    readdir(dir);
    seekdir(dir, at);
    SAY(strcmp(name, readdir(dir)->d_name));
    free(name);
    struct stat st, here;
    SAY(fstat(dirfd(dir), &st));
    stat(".", &here);
    SAY(st.st_ino == here.st_ino && st.st_dev == here.st_dev);
    SAY(fstatat(dirfd(dir), "dir/inner", &st, 0));
    SAY(fstatat(dirfd(dir), "", &st, AT_EMPTY_PATH));
    SAY(fstatat(dirfd(dir), "", &st, 0));
    SAY(closedir(dir));
    int fd = open("dir", O_RDONLY | O_DIRECTORY);
    char data[32768];
    SAY(read(fd, data, 1));
    SAY(getdents64(fd, data, 10));
    long len = getdents64(fd, data, sizeof data);
    int count = 0;
    for (long n = 0; n < len; n += ((struct dirent64 *)(data + n))->d_reclen)
        count++;
    SAY(count);
    SAY(getdents64(fd, data, sizeof data));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(getdents64(fd, data, sizeof data) == len);
    SAY_FD(openat(fd, "inner", O_RDONLY));
    SAY_FD(openat(fd, "../plain", O_RDONLY));
    SAY_FD(openat(fd, "none", O_RDONLY));
    SAY_FD(openat(fd, "none", O_RDONLY | O_CREAT, 0600));
    SAY(mkdirat(fd, "none", 0700));
    SAY(unlinkat(fd, "inner", 0));
    SAY(readlinkat(fd, "up", data, 100));
    SAY(faccessat(fd, "inner", R_OK, 0));
    SAY(fchdir(fd));
    SAY_FD(open("inner", O_RDONLY));
    printf("cwd %s\n", below(getcwd(data, sizeof data)));
    SAY_P(getcwd(data, 1));
    SAY_P(getcwd(data, 0));
    char *cwd = get_current_dir_name();
    printf("cwd %s\n", below(cwd));
    free(cwd);
    SAY(chdir(".."));
    printf("cwd %s\n", below(getcwd(data, sizeof data)));
    dir = fdopendir(fd);
    listed(dir);
    closedir(dir);
    SAY(fcntl(fd, F_GETFD));
    fd = open("small", O_RDONLY);
    SAY_P(fdopendir(fd));
    SAY_FD(openat(fd, "x", O_RDONLY));
    close(fd);
    fd = open("link", O_PATH | O_NOFOLLOW);
    SAY(readlinkat(fd, "", data, sizeof data));
    SAY(read(fd, data, 1));
    if (fstat(fd, &st) == 0)
        say_stat("O_PATH", &st);
    close(fd);
    fd = open("plain", O_PATH);
    SAY(read(fd, data, 1));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(fcntl(fd, F_GETFL));
    SAY(fstatat(fd, "", &st, AT_EMPTY_PATH));
    close(fd);
    struct dirent **entries;
    count = scandir("dir", &entries, no_dots, alphasort);
    for (int n = 0; n < count; n++) {
        printf("scandir %s\n", entries[n]->d_name);
        free(entries[n]);
    }
    free(entries);
    SAY(scandir("missing", &entries, NULL, NULL));
    visited(nftw("dir", visit, 10, FTW_PHYS));
    visited(nftw("dir", visit, 10, FTW_PHYS | FTW_DEPTH));
    visited(nftw("to-dir", visit, 10, 0));
    visited(ftw("dir", visit_old, 10));
    visited(nftw("missing", visit, 10, 0));
    glob_t found;
    SAY(glob("d*/i*", 0, NULL, &found));
    for (size_t n = 0; n < found.gl_pathc; n++)
        printf("glob %s\n", found.gl_pathv[n]);
    globfree(&found);
    SAY(glob("none*", 0, NULL, &found));
}

static void *reads(void *arg) {
    int fd = *(int *)arg;
    long total = 0;
    char data[1000];
    for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;)
        total += n;
    return (void *)total;
}

static void threads(void) {
    puts("== threads");
    for (int round = 0; round < 20; round++) {
        int fd = open("aligned", O_RDONLY);
        struct stat st;
        fstat(fd, &st);
        pthread_t all[4];
        long total = 0;
        for (int n = 0; n < 4; n++)
            pthread_create(&all[n], NULL, reads, &fd);
        for (int n = 0; n < 4; n++) {
            void *got;
            pthread_join(all[n], &got);
            total += (long)got;
        }
        if (total != st.st_size)
            printf("read %ld of %lld bytes\n", total, (long long)st.st_size);
        close(fd);
    }
}

static void ran(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    printf("status %d\n", status);
}

static void programs(void) {
    puts("== programs");
    fflush(stdout);
    for (int way = 0; way < 6; way++) {
        int fd = open("small", O_RDONLY);
        char byte;
        read(fd, &byte, 1);
        pid_t pid = way == 5 ? vfork() : fork();
        if (pid == 0) {
            dup2(fd, 0);
            close(fd);
            char *args[] = {"cat", NULL};
            char *bare[] = {"PATH=/usr/bin:/bin", NULL};
            switch (way) {
            case 0: execl("/bin/cat", "cat", NULL);
            case 1: execlp("cat", "cat", "-", NULL);
            case 2: execle("/bin/cat", "cat", NULL, bare);
            case 3: execvp("cat", args);
            case 4: execve("/bin/cat", args, bare);
            default: execv("/bin/cat", args);
            }
            _exit(9);
        }
        ran(pid);
        close(fd);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int fd = open("small", O_RDONLY | O_CLOEXEC);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    char *cat[] = {"cat", NULL};
    pid_t pid;
    int failed = posix_spawn(&pid, "/bin/cat", &actions, NULL, cat, environ);
    ran(pid);
    SAY(failed);
    close(fd);
    char *script[] = {"script", "a", "b", NULL};
    failed = posix_spawn(&pid, "program", NULL, NULL, script, environ);
    ran(pid);
    SAY(failed);
    SAY(posix_spawn(&pid, "plain", NULL, NULL, script, environ));
    pid = fork();
    if (pid == 0) {
        execv("./program", script);
        _exit(9);
    }
    ran(pid);
    SAY(execv("plain", script));
    SAY(execv("missing", script));
    SAY(execv("dir", script));
    SAY(system("cat small; cat dir/inner > /dev/null"));
    FILE *pipe = popen("cat < small", "r");
    char line[100];
    while (fgets(line, sizeof line, pipe))
        printf("popen %s", line);
    SAY(pclose(pipe));
}

static void streams(void) {
    puts("== streams");
    FILE *file = fopen("small", "re");
    char line[100] = "";
    struct stat st;
    while (fgets(line, sizeof line, file))
        printf("line %s", line);
    SAY(fstat(fileno(file), &st));
    say_stat("stream", &st);
    SAY(fseek(file, 2, SEEK_SET));
    SAY(getc(file));
    SAY(ftell(file));
    SAY(putc('x', file));
    file = freopen("dir/inner", "r", file);
    SAY_P(file);
    SAY(fstat(fileno(file), &st));
    say_stat("stream", &st);
    SAY_P(fgets(line, sizeof line, file));
    fputs(line, stdout);
    SAY(fclose(file));
    int fd = open("small", O_RDONLY);
    lseek(fd, 3, SEEK_SET);
    file = fdopen(fd, "r");
    SAY_P(fgets(line, sizeof line, file));
    fputs(line, stdout);
    fclose(file);
    SAY(fcntl(fd, F_GETFD));
    /* The standard input of this very program. */
    fd = open("small", O_RDONLY);
    dup2(fd, 0);
    close(fd);
    SAY_P(fgets(line, sizeof line, stdin));
    fputs(line, stdout);
    SAY_P(freopen("missing", "r", stdin));
}

/* Processes that share a position get each byte once, and none that is behind the file's end. */
static void shared(void) {
    static char data[1000];
    unsigned long *all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 300; round++) {
        int fd = open("many/0150", O_RDONLY);
        for (int n = 0; n < 4; n++) {
            if (fork() == 0) {
                struct iovec iov = {data, sizeof data};
                ssize_t got = 0;
                do {
                    __atomic_add_fetch(all, got, __ATOMIC_SEQ_CST);
                    got = n % 2 ? read(fd, data, sizeof data) : readv(fd, &iov, 1);
                } while (got > 0);
                _exit(got != 0);
            }
        }
        while (wait(NULL) > 0)
            ;
        close(fd);
    }
    printf("%lu bytes were read by children\n", *all);
    /* One that is killed while it reads stops nobody. */
    int fd = open("many/0150", O_RDONLY);
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (child == 0)
            for (;;)
                if (read(fd, data, 1) < 1)
                    lseek(fd, 0, SEEK_SET);
        lseek(fd, 0, SEEK_SET);
        kill(child, SIGKILL);
        ran(child);
    }
    lseek(fd, 0, SEEK_SET);
    SAY(read(fd, data, sizeof data));
    close(fd);
}

/* O_DIRECT of a file that does not begin at a block of its partition. */
static void direct(void) {
    static char data[8192] __attribute__((aligned(4096)));
    int fd = open("dir/sub/deep/down", O_RDONLY);
    SAY(fcntl(fd, F_SETFL, O_DIRECT));
    SAY(read(fd, data, 4096));
    SAY(read(fd, data, 4096));
    printf("%.9s", data);
    close(fd);
}

/* A descriptor by its path, and what gets its number after it was closed past the library. */
static void descriptors(void) {
    char path[PATH_MAX], text[64] = "";
    struct stat st;
    int fd = open("small", O_RDONLY), dir = open("dir", O_RDONLY);
    static const char *const WAYS[] = {"/dev/fd/%d", "/proc/self/fd/%d", "/proc/thread-self/fd/%d"};
    for (size_t n = 0; n < COUNT(WAYS); n++) {
        snprintf(path, sizeof path, WAYS[n], fd);
        SAY(stat(path, &st));
        say_stat("by descriptor", &st);
        SAY(lstat(path, &st));
        printf("%o\n", st.st_mode & S_IFMT);
        SAY(access(path, R_OK));
        SAY_FD(open(path, O_RDWR));
        SAY_FD(open(path, O_RDONLY | O_NOFOLLOW));
        int other = open(path, O_RDONLY);
        SAY(pread(other, text, sizeof text, 11));
        SAY(lseek(other, 0, SEEK_END));
        close(other);
        FILE *file = fopen(path, "r");
        SAY_P(fgets(text, sizeof text, file));
        fputs(text, stdout);
        fclose(file);
        snprintf(path, sizeof path, WAYS[n], dir);
        DIR *list = opendir(path);
        while (list && readdir(list))
            errno = 0;
        SAY_P(list);
        closedir(list);
        strcat(path, "/inner");
        SAY(stat(path, &st));
        say_stat("below a descriptor", &st);
    }
    SAY_FD(open("/dev/fd/9999", O_RDONLY));
    SAY_FD(open("/dev/fd/x", O_RDONLY));
    close(dir);
    syscall(SYS_close, fd);
    SAY(open("/dev/null", O_RDONLY) == fd);
    SAY(fstat(fd, &st));
    SAY(S_ISCHR(st.st_mode));
    close(fd);
    /* A child without the handlers of fork(2), and one with a terminal. */
    fd = open("small", O_RDONLY);
    dup2(fd, 0);
    pid_t child = _Fork();
    if (child == 0) {
        close(fd);
        int other = socket(AF_UNIX, SOCK_STREAM, 0);
        _exit(other == fd && fstat(other, &st) == 0 && S_ISSOCK(st.st_mode) ? 0 : 1);
    }
    ran(child);
    int terminal;
    child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0)
        _exit(isatty(0) && fstat(0, &st) == 0 && S_ISCHR(st.st_mode) ? 0 : 1);
    ran(child);
    close(terminal);
    int ends[2];
    if (pipe(ends))
        exit(2);
    child = fork();
    if (child == 0) {
        int is_wrong = daemon(0, 0) || fstat(0, &st) || !S_ISCHR(st.st_mode) || access("tmp", F_OK);
        text[0] = is_wrong ? 'n' : 'y';
        _exit(write(ends[1], text, 1) != 1);
    }
    ran(child);
    SAY(read(ends[0], text, 1));
    printf("a daemon's standard input: %c\n", text[0]);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

int main(int count, char **args) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 3 || chdir(args[1]) || !getcwd(root, sizeof root))
        return 2;
    signal(SIGBUS, caught);
    signal(SIGSEGV, caught);
    paths();
    static const char *const FILES[] = {"plain", "small", "large", "zeros", "aligned"};
    for (size_t n = 0; n < COUNT(FILES); n++) {
        whole_file(FILES[n]);
        mapped(FILES[n]);
        copied(FILES[n], args[2]);
        for (unsigned seed = 1; seed < 4; seed++)
            random_calls(FILES[n], seed);
    }
    directories();
    threads();
    programs();
    streams();
    descriptors();
    shared();
    direct();
    return 0;
}
