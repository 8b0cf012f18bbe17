/* Reads all files of a directory in a random order, each from its beginning to its end.
 *
 *   read DIRECTORY THREADS SEED [sum]
 *
 * Each file is read once, by one of the threads. Prints a line of JSON: files, bytes, seconds, CPU
 * seconds of this process, and with "sum" a checksum of all files, whatever the order. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { FILES_MAX = 1 << 20, BUFFER = 1 << 20 };

static char *names[FILES_MAX];
static int count, wants_sum;
static atomic_int next;
static atomic_ulong bytes, sum;

static void fail(const char *what) {
    fprintf(stderr, "read: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* FNV-1a over words: each byte and its place counts. */
static uint64_t checksum(uint64_t hash, const unsigned char *data, size_t len) {
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, data + at, len - at < 8 ? len - at : 8);
        hash = (hash ^ word) * 0x100000001b3;
    }
    return hash;
}

static void *read_files(void *unused) {
    (void)unused;
    unsigned char *data = malloc(BUFFER);
    if (!data)
        fail("memory");
    for (int n; (n = atomic_fetch_add(&next, 1)) < count;) {
        int fd = open(names[n], O_RDONLY);
        if (fd < 0)
            fail(names[n]);
        uint64_t hash = 0xcbf29ce484222325;
        for (;;) {
            /* Pieces of the checksum begin at multiples of eight. */
            ssize_t filled = 0, got;
            while (filled < BUFFER && (got = read(fd, data + filled, BUFFER - filled)) > 0)
                filled += got;
            if (got < 0)
                fail(names[n]);
            atomic_fetch_add(&bytes, filled);
            if (wants_sum)
                hash = checksum(hash, data, filled);
            if (filled < BUFFER)
                break;
        }
        atomic_fetch_add(&sum, hash);
        if (close(fd))
            fail(names[n]);
    }
    free(data);
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return fprintf(stderr, "usage: read DIRECTORY THREADS SEED [sum]\n"), 2;
    wants_sum = argc > 4;
    DIR *dir = opendir(argv[1]);
    if (!dir)
        fail(argv[1]);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        if (count == FILES_MAX || asprintf(&names[count], "%s/%s", argv[1], entry->d_name) < 0)
            fail("too many files");
        count++;
    }
    closedir(dir);
    unsigned short state[3] = {(unsigned short)atoi(argv[3]), 7, 11};
    for (int n = count - 1; n > 0; n--) {
        int other = nrand48(state) % (n + 1);
        char *name = names[n];
        names[n] = names[other], names[other] = name;
    }
    int threads = atoi(argv[2]);
    pthread_t *all = calloc(threads, sizeof *all);
    double start = seconds();
    for (int n = 0; n < threads; n++)
        if (pthread_create(&all[n], NULL, read_files, NULL))
            fail("threads");
    for (int n = 0; n < threads; n++)
        pthread_join(all[n], NULL);
    double took = seconds() - start;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec +
                 (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"files\": %d, \"bytes\": %lu, \"seconds\": %.6f, \"cpu_s\": %.6f, \"sum\": %lu}\n",
           count, atomic_load(&bytes), took, cpu, wants_sum ? atomic_load(&sum) : 0);
    return 0;
}
