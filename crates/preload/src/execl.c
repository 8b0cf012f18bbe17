/* execl(3) and its relatives, as calls of those that take a list. Rust cannot say "...". */

#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Arguments of a call, and the null pointer after them. */
#define COUNT(first)                                                                               \
    size_t count = 1;                                                                              \
    va_list args;                                                                                  \
    va_start(args, first);                                                                         \
    for (const char *arg = first; arg != NULL; count++)                                            \
        arg = va_arg(args, const char *);                                                          \
    va_end(args)

#define COLLECT(first)                                                                             \
    char *list[count];                                                                             \
    list[0] = (char *)first;                                                                       \
    va_start(args, first);                                                                         \
    for (size_t n = 1; n < count; n++)                                                             \
        list[n] = va_arg(args, char *)

HIDDEN int saker_execl(const char *path, const char *first, ...) {
    COUNT(first);
    COLLECT(first);
    va_end(args);
    return execv(path, list);
}

HIDDEN int saker_execlp(const char *file, const char *first, ...) {
    COUNT(first);
    COLLECT(first);
    va_end(args);
    return execvp(file, list);
}

HIDDEN int saker_execle(const char *path, const char *first, ...) {
    COUNT(first);
    COLLECT(first);
    char **env = va_arg(args, char **);
    va_end(args);
    return execve(path, list, env);
}
