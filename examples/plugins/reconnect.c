/* A plug-in that lets clients connect again: connections to the servers that CKPT_RECONNECT names are made
 * anew after a restart, at the same descriptors, before the program goes on.
 *
 *   cc -shared -fPIC -I /usr/include -o reconnect.so reconnect.c
 *   CKPT_RECONNECT=10.0.0.5:6379 ckpt run --plugins $PWD/reconnect.so -- ./client
 *
 * For servers that answer one request after the other (Redis, memcached, SMTP...). The client makes each
 * request and its answer a critical section (ckpt_rt_enter_critical), so no checkpoint finds one without the
 * other. A server that wants to know who speaks is told by the client: ckpt_rt_restarted() says that there
 * was a restart. A server that is not there: the connection stays reset, as without the plug-in. An epoll set
 * loses the descriptor: add it again.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "ckpt_plugin.h"

enum { MOST_SERVERS = 16, MOST_CONNECTIONS = 256, LAST_DESCRIPTOR = 4096 };

static struct sockaddr_in servers[MOST_SERVERS];
static int server_count;

/* Of the newest checkpoint; in the image, for `stopped` comes before it is taken. */
static struct {
  int fd, server, no_delay;
  ino_t socket;
} connections[MOST_CONNECTIONS];
static int connection_count;

static int load(char* error, size_t size) {
  const char* list = getenv("CKPT_RECONNECT");
  char text[64];
  while (list != NULL && *list != '\0') {
    const size_t length = strcspn(list, ",");
    const char* colon = memchr(list, ':', length);
    struct sockaddr_in* server = &servers[server_count];
    if (server_count == MOST_SERVERS || colon == NULL || length >= sizeof(text)) break;
    memcpy(text, list, length);
    text[length] = '\0';
    text[colon - list] = '\0';
    server->sin_family = AF_INET;
    server->sin_port = htons((uint16_t)atoi(text + (colon - list) + 1));
    if (server->sin_port == 0 || inet_pton(AF_INET, text, &server->sin_addr) != 1) break;
    ++server_count;
    list += length + (list[length] == ',');
  }
  if (server_count != 0 && *list == '\0') return 0;
  snprintf(error, size,
           "CKPT_RECONNECT names no servers: set it to ADDRESS:PORT,ADDRESS:PORT (IPv4), at most %d",
           MOST_SERVERS);
  return 1;
}

static void stopped(void) {
  connection_count = 0;
  for (int fd = 0; fd < LAST_DESCRIPTOR && connection_count < MOST_CONNECTIONS; ++fd) {
    struct sockaddr_in peer;
    struct stat st;
    socklen_t length = sizeof(peer);
    if (getpeername(fd, (struct sockaddr*)&peer, &length) != 0 || peer.sin_family != AF_INET ||
        fstat(fd, &st) != 0)
      continue;
    for (int i = 0; i < server_count; ++i) {
      if (peer.sin_port != servers[i].sin_port || peer.sin_addr.s_addr != servers[i].sin_addr.s_addr)
        continue;
      int no_delay = 0;
      length = sizeof(no_delay);
      getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length);
      connections[connection_count].fd = fd;
      connections[connection_count].server = i;
      connections[connection_count].no_delay = no_delay;
      connections[connection_count++].socket = st.st_ino;
      break;
    }
  }
}

static void restarted(void) {
  for (int i = 0; i < connection_count; ++i) {
    const int fd = connections[i].fd, close_on_exec = (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
    int same = 0;
    while (same < i && connections[same].socket != connections[i].socket) ++same;
    if (same < i) { /* a duplicate */
      dup3(connections[same].fd, fd, close_on_exec);
      continue;
    }
    const int flags = fcntl(fd, F_GETFL);
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    if (made < 0) continue;
    const struct sockaddr_in* server = &servers[connections[i].server];
    if (connect(made, (const struct sockaddr*)server, sizeof(*server)) == 0) {
      setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &connections[i].no_delay, sizeof(int));
      fcntl(made, F_SETFL, flags);
      dup3(made, fd, close_on_exec);
    }
    close(made);
  }
}

const struct ckpt_plugin ckpt_plugin = {.size = sizeof(ckpt_plugin),
                                        .api_version = CKPT_PLUGIN_API_VERSION,
                                        .name = "reconnect",
                                        .load = load,
                                        .stopped = stopped,
                                        .restarted = restarted};
