/* What opening, reading and closing files costs, and stat(2) of a path, in CPU time.
 *
 * cost DIRECTORY ROUNDS: each file of the directory is opened, read whole and closed, ROUNDS times;
 * then /etc/passwd is looked at a million times. */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static double cpu_us(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + used.ru_utime.tv_usec +
           used.ru_stime.tv_usec;
}

int main(int count, char **args) {
    static char data[1 << 20], *names[100000];
    int files = 0;
    DIR *dir = count == 3 ? opendir(args[1]) : NULL;
    if (!dir)
        return fprintf(stderr, "cost DIRECTORY ROUNDS\n"), 2;
    for (struct dirent *entry; (entry = readdir(dir)) && files < 100000;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", args[1], entry->d_name);
        if (entry->d_type == DT_REG)
            names[files++] = strdup(path);
    }
    closedir(dir);
    long bytes = 0;
    int rounds = atoi(args[2]);
    double before = 0;
    /* The first round is to have all in memory. */
    for (int round = 0; round <= rounds; round++) {
        if (round == 1)
            before = cpu_us(), bytes = 0;
        for (int n = 0; n < files; n++) {
            int fd = open(names[n], O_RDONLY);
            for (ssize_t got; (got = read(fd, data, sizeof data)) > 0;)
                bytes += got;
            close(fd);
        }
    }
    double used = (cpu_us() - before) / ((double)files * rounds);
    printf("%d files, %ld bytes each: %.2f us a file\n", files, bytes / files / rounds, used);
    before = cpu_us();
    for (int n = 0; n < files * rounds; n++) {
        int fd = open(names[n % files], O_RDONLY);
        close(fd);
    }
    printf("open and close: %.2f us\n", (cpu_us() - before) / ((double)files * rounds));
    struct stat st;
    before = cpu_us();
    for (int n = 0; n < files * rounds; n++)
        stat(names[n % files], &st);
    printf("stat: %.3f us\n", (cpu_us() - before) / ((double)files * rounds));
    before = cpu_us();
    for (int n = 0; n < 1000000; n++)
        stat("/etc/passwd", &st);
    printf("stat elsewhere: %.3f us\n", (cpu_us() - before) / 1e6);
    return 0;
}
