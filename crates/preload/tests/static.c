/* Prints its standard input, and the descriptor that its argument names. Linked statically, so that
 * nothing can stand before its calls. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void print(int fd) {
    char data[4096];
    for (ssize_t got; (got = read(fd, data, sizeof data)) > 0;)
        fwrite(data, 1, got, stdout);
}

int main(int count, char **args) {
    print(0);
    if (count > 1)
        print(atoi(args[1]));
    return 0;
}
