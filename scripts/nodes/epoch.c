// Reads all files of a list once, in random order, as a loader does: open, read, close.
//
//   epoch LIST SEED     LIST: a line "NUMBER BYTES PATH" for each file
//
// Prints "ready", waits for a line on its standard input, reads, and prints one line of JSON. Each
// file begins and ends with its number, as eight bytes.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct file {
    uint64_t number;
    size_t bytes;
    char *path;
};

static uint64_t state;

static uint64_t draw(void) {
    // splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void fail(const char *what, const char *path) {
    fprintf(stderr, "epoch: %s: %s: %s\n", path, what, strerror(errno));
    exit(1);
}

static double cpu_us(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    struct timeval user = used.ru_utime, system = used.ru_stime;
    return 1e6 * (user.tv_sec + system.tv_sec) + user.tv_usec + system.tv_usec;
}

static double wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * now.tv_sec + now.tv_nsec / 1e3;
}

static void read_file(const struct file *file, char *into) {
    size_t have = 0;
    ssize_t got;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open", file->path);
    while ((got = read(fd, into + have, file->bytes + 1 - have)) > 0) have += got;
    if (got < 0) fail("read", file->path);
    if (close(fd)) fail("close", file->path);
    const void *last = into + have - 8;
    if (have != file->bytes || memcmp(into, &file->number, 8) || memcmp(last, &file->number, 8)) {
        errno = EIO;
        fail("other bytes than were packed", file->path);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    FILE *list = fopen(argv[1], "r");
    if (!list) fail("open", argv[1]);
    state = strtoull(argv[2], NULL, 10);
    struct file *files = NULL, file;
    size_t count = 0, most = 0;
    while (fscanf(list, "%lu %zu %ms", &file.number, &file.bytes, &file.path) == 3) {
        files = realloc(files, (count + 1) * sizeof *files);
        if (!files) fail("memory", argv[1]);
        files[count++] = file;
        if (file.bytes > most) most = file.bytes;
    }
    char *into = malloc(most + 1);
    if (!into || !count) fail("memory, or an empty list", argv[1]);
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = draw() % (i + 1);
        file = files[i], files[i] = files[j], files[j] = file;
    }
    struct stat first;
    if (stat(files[0].path, &first)) fail("stat", files[0].path);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    double cpu = cpu_us(), wall = wall_us();
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        read_file(&files[i], into);
        bytes += files[i].bytes;
    }
    printf("{\"files\": %zu, \"bytes\": %zu, \"cpu_us\": %.0f, \"wall_us\": %.0f}\n", count, bytes,
           cpu_us() - cpu, wall_us() - wall);
    return 0;
}
