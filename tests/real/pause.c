// What holds a Pod's namespaces open until it is told to go.
#include <signal.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    // Orphans of the Pod are reaped by the kernel.
    signal(SIGCHLD, SIG_IGN);
    for (;;) pause();
}
