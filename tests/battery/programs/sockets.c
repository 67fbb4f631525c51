// Sockets to oneself, with bytes, datagrams and descriptors under way.
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "battery.h"

static int listens(int family, int type, void* address, socklen_t* length) {
  int s = socket(family, type, 0), one = 1;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  MUST(bind(s, address, *length) == 0);
  if (type != SOCK_DGRAM) MUST(listen(s, 16) == 0);
  *length = sizeof(struct sockaddr_storage);
  MUST(getsockname(s, address, length) == 0);
  return s;
}

static void tcp_pair(int family, int pair[2], int* listener) {
  struct sockaddr_storage a = {0};
  socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  a.ss_family = (sa_family_t)family;
  if (family == AF_INET) ((struct sockaddr_in*)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (family == AF_INET6) ((struct sockaddr_in6*)&a)->sin6_addr = in6addr_loopback;
  *listener = listens(family, SOCK_STREAM, &a, &length);
  pair[0] = socket(family, SOCK_STREAM, 0);
  MUST(connect(pair[0], (void*)&a, length) == 0);
  pair[1] = accept(*listener, NULL, NULL);
  MUST(pair[1] >= 0);
}

static int option(int s, int level, int name) {
  int v = -1;
  socklen_t l = sizeof v;
  MUST(getsockopt(s, level, name, &v, &l) == 0);
  return v;
}
static void set(int s, int level, int name, int v) { MUST(setsockopt(s, level, name, &v, sizeof v) == 0); }

static void tcp_of(int family) {
  int p[2], l, waits;
  tcp_pair(family, p, &l);
  set(p[0], IPPROTO_TCP, TCP_NODELAY, 1), set(p[1], SOL_SOCKET, SO_KEEPALIVE, 1),
      set(p[1], IPPROTO_TCP, TCP_KEEPIDLE, 77);
  set(p[0], IPPROTO_TCP, TCP_USER_TIMEOUT, 99000);
  struct linger linger = {1, 9};
  setsockopt(p[1], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
  struct timeval patience = {5, 0};
  setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  struct sockaddr_storage name[2], is;
  socklen_t length;
  for (int i = 0; i < 2; i++) length = sizeof name[i], getsockname(p[i], (void*)&name[i], &length);
  char out[3000], in[3000];
  for (int i = 0; i < 3; i++) memset(out, i + 1, 3000), MUST(write(p[0], out, 3000) == 3000);
  EACH_STEP(n) {
    memset(out, n + 4, 3000);
    MUST(write(p[0], out, 3000) == 3000 && write(p[1], &n, 4) == 4);
    MUST(recv(p[1], in, 3000, MSG_WAITALL) == 3000 && in[0] == (char)(n + 1) && in[2999] == (char)(n + 1));
    MUST(read(p[0], in, 4) == 4 && *(int*)(void*)in == n);
    MUST(option(p[0], IPPROTO_TCP, TCP_NODELAY) == 1 && option(p[1], IPPROTO_TCP, TCP_KEEPIDLE) == 77 &&
         option(p[0], IPPROTO_TCP, TCP_USER_TIMEOUT) == 99000);
    MUST(option(p[1], SOL_SOCKET, SO_KEEPALIVE) == 1 && option(l, SOL_SOCKET, SO_ACCEPTCONN) == 1 &&
         option(l, SOL_SOCKET, SO_REUSEADDR) == 1);
    length = sizeof is, getpeername(p[0], (void*)&is, &length);
    MUST(memcmp(&is, &name[1], length) == 0);
    MUST(ioctl(p[1], FIONREAD, &waits) == 0 && waits == 9000);
  }
  int c[2];
  c[0] = socket(family, SOCK_STREAM, 0);
  length = sizeof is, getsockname(l, (void*)&is, &length);
  MUST(connect(c[0], (void*)&is, length) == 0 && (c[1] = accept(l, NULL, NULL)) >= 0);
}
static void tcp4(void) { tcp_of(AF_INET); }
static void tcp6(void) { tcp_of(AF_INET6); }

static void half_closed(void) {
  int p[2], l, u[2], c[2];
  tcp_pair(AF_INET, p, &l), close(l);
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, u) == 0);
  char out[STEPS], in;
  for (int i = 0; i < STEPS; i++) out[i] = (char)i;
  MUST(write(p[0], out, STEPS) == STEPS && shutdown(p[0], SHUT_WR) == 0);
  MUST(write(u[0], out, STEPS) == STEPS && shutdown(u[0], SHUT_WR) == 0);
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, c) == 0 && write(c[0], out, STEPS) == STEPS && close(c[0]) == 0);
  signal(SIGPIPE, SIG_IGN);
  EACH_STEP(n) {
    MUST(read(p[1], &in, 1) == 1 && in == (char)n && read(u[1], &in, 1) == 1 && in == (char)n &&
         read(c[1], &in, 1) == 1 && in == (char)n);
    MUST(write(p[1], &in, 1) == 1 && read(p[0], &in, 1) == 1 && in == (char)n && write(u[1], &in, 1) == 1 &&
         read(u[0], &in, 1) == 1);
    MUST(write(p[0], &in, 1) < 0 && errno == EPIPE && write(u[0], &in, 1) < 0 && errno == EPIPE &&
         write(c[1], &in, 1) < 0 && errno == EPIPE);
  }
  MUST(read(p[1], &in, 1) == 0 && read(u[1], &in, 1) == 0);
  MUST(read(c[1], &in, 1) == 0);
}

static void urgent(void) {
  int p[2], l, mark;
  tcp_pair(AF_INET, p, &l), close(l);
  char c, in[10];
  EACH_STEP(n) {
    MUST(write(p[0], "abc", 3) == 3 && send(p[0], "!", 1, MSG_OOB) == 1 && write(p[0], "de", 2) == 2);
    for (int i = 0; i < 1000 && recv(p[1], &c, 1, MSG_OOB) != 1; i++) usleep(1000);
    MUST(c == '!');
    rest_ms(n % 3 * 4);
    MUST(ioctl(p[1], SIOCATMARK, &mark) == 0 && mark == 0);
    MUST(read(p[1], in, 10) == 3 && memcmp(in, "abc", 3) == 0);
    MUST(ioctl(p[1], SIOCATMARK, &mark) == 0 && mark == 1);
    MUST(recv(p[1], in, 2, MSG_WAITALL) == 2 && memcmp(in, "de", 2) == 0);
  }
}

static void udp(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, b = a, from;
  socklen_t la = sizeof a, lb = sizeof b;
  int s = listens(AF_INET, SOCK_DGRAM, &a, &la), t = listens(AF_INET, SOCK_DGRAM, &b, &lb);
  MUST(connect(t, (void*)&a, la) == 0);
  set(s, IPPROTO_IP, IP_TTL, 44), set(s, IPPROTO_IP, IP_TOS, 16), set(s, SOL_SOCKET, SO_BROADCAST, 1),
      set(s, SOL_SOCKET, SO_RCVBUF, 100000);
  struct ip_mreqn group = {.imr_multiaddr.s_addr = inet_addr("239.1.2.3"),
                           .imr_ifindex = (int)if_nametoindex("lo")};
  int member = setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group) == 0;
  int buffer = option(s, SOL_SOCKET, SO_RCVBUF);
  char in[2000], out[2000];
  for (int i = 0; i < 4; i++) memset(out, i, 2000), MUST(send(t, out, 10 + i * 20, 0) == 10 + i * 20);
  EACH_STEP(n) {
    int m = n + 4, size = 10 + m % 90 * 20, expected = 10 + n % 90 * 20;
    memset(out, m, 2000);
    MUST(send(t, out, size, 0) == size);
    socklen_t l = sizeof from;
    MUST(recvfrom(s, in, 2000, 0, (void*)&from, &l) == expected && in[expected - 1] == (char)n &&
         from.sin_port == b.sin_port);
    MUST(option(s, IPPROTO_IP, IP_TTL) == 44 && option(s, IPPROTO_IP, IP_TOS) == 16 &&
         option(s, SOL_SOCKET, SO_BROADCAST) == 1);
    MUST(option(s, SOL_SOCKET, SO_RCVBUF) == buffer);
    if (member && n % 20 == 19)
      MUST(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group) < 0 && errno == EADDRINUSE);
  }
}

static void send_descriptor(int s, int fd, const char* text) {
  char room[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec v = {(void*)text, strlen(text)};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  MUST(sendmsg(s, &m, 0) == (ssize_t)strlen(text));
}
static int receive_descriptor(int s, char* text, size_t size) {
  char room[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
  struct iovec v = {text, size};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  int fd = -1;
  MUST(recvmsg(s, &m, MSG_CMSG_CLOEXEC) > 0);
  for (struct cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (c->cmsg_type == SCM_CREDENTIALS) {
      struct ucred u;
      memcpy(&u, CMSG_DATA(c), sizeof u);
      MUST(u.pid == getpid() && u.uid == getuid());
    }
  }
  return fd;
}

static void rights(void) {
  int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}, p[3][2], file = open("f", O_RDWR | O_CREAT, 0600);
  for (int i = 0; i < 3; i++) {
    MUST(socketpair(AF_UNIX, kinds[i], 0, p[i]) == 0);
    set(p[i][1], SOL_SOCKET, SO_PASSCRED, 1);
  }
  for (int i = 0; i < 3; i++) {
    int q[2];
    MUST(pipe(q) == 0 && write(q[1], &i, 4) == 4);
    send_descriptor(p[i][0], q[0], "first"), send_descriptor(p[i][0], file, "second");
    close(q[0]), close(q[1]);
  }
  EACH_STEP(n) {
    for (int i = 0; i < 3; i++) {
      int q[2];
      MUST(pipe(q) == 0);
      int x = n * 3 + i;
      MUST(write(q[1], &x, 4) == 4);
      send_descriptor(p[i][0], q[0], "more");
      close(q[0]), close(q[1]);
      char text[10] = {0};
      int fd = receive_descriptor(p[i][1], text, n == 0 ? 5 : n == 1 ? 6 : 4);
      MUST(fd >= 0 && strcmp(text, n == 0 ? "first" : n == 1 ? "second" : "more") == 0);
      if (n != 1) MUST(read(fd, &x, 4) == 4 && x == (n == 0 ? i : (n - 2) * 3 + i) && read(fd, &x, 4) == 0);
      if (n == 1) MUST(write(fd, "hello", 5) == 5 && lseek(file, 0, SEEK_CUR) == 5 * (i + 1));
      close(fd);
    }
  }
}

static void unix_names(void) {
  struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "sock"}, b = {.sun_family = AF_UNIX},
                     c = {.sun_family = AF_UNIX, .sun_path = "dgram"};
  socklen_t la = sizeof a, lb = sizeof(sa_family_t), lc = sizeof c;
  int l = listens(AF_UNIX, SOCK_STREAM, &a, &la), d = socket(AF_UNIX, SOCK_DGRAM, 0),
      e = listens(AF_UNIX, SOCK_DGRAM, &c, &lc);
  MUST(bind(d, (void*)&b, lb) == 0 && fchmod(l, 0600) == 0 && chmod("sock", 0620) == 0);
  struct sockaddr_un own, is;
  socklen_t length = sizeof own, li;
  getsockname(d, (void*)&own, &length);
  MUST(own.sun_path[0] == 0 && length > 3);
  EACH_STEP(n) {
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(connect(s, (void*)&a, la) == 0);
    MUST(write(s, &n, 4) == 4);
    rest_ms(2);
    int t = accept4(l, NULL, NULL, SOCK_CLOEXEC), x;
    MUST(t >= 0 && read(t, &x, 4) == 4 && x == n);
    struct ucred u;
    socklen_t lu = sizeof u;
    MUST(getsockopt(t, SOL_SOCKET, SO_PEERCRED, &u, &lu) == 0 && u.pid == getpid());
    close(s), close(t);
    MUST(sendto(d, &n, 4, 0, (void*)&c, lc) == 4);
    li = sizeof is;
    MUST(recvfrom(e, &x, 4, 0, (void*)&is, &li) == 4 && x == n && li == length && memcmp(&is, &own, li) == 0);
    struct stat st;
    MUST(stat("sock", &st) == 0 && (st.st_mode & 0777) == 0620);
  }
}

static void clients_of(int deferred) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t la = sizeof a;
  int l = listens(AF_INET, SOCK_STREAM, &a, &la), s[STEPS + 4], x;
  if (deferred) set(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 1);
  for (int i = 0; i < 4; i++)
    s[i] = socket(AF_INET, SOCK_STREAM, 0),
    MUST(connect(s[i], (void*)&a, la) == 0 && write(s[i], &i, 4) == 4);
  EACH_STEP(n) {
    int i = n + 4;
    s[i] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(s[i], (void*)&a, la) == 0 && write(s[i], &i, 4) == 4);
    int t = accept(l, NULL, NULL);
    MUST(t >= 0 && read(t, &x, 4) == 4 && x == n);
    MUST(write(t, "yes", 3) == 3 && read(s[n], &x, 3) == 3);
    close(t);
    MUST(read(s[n], &x, 1) == 0);
    close(s[n]);
  }
}

static void queue_of_clients(void) { clients_of(0); }
static void deferred_clients(void) { clients_of(1); }

static void peeked(void) {
  int p[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
  char out[STEPS * 3], in[4];
  for (int i = 0; i < STEPS * 3; i++) out[i] = (char)i;
  MUST(write(p[0], out, sizeof out) == sizeof out);
  set(p[1], SOL_SOCKET, SO_PEEK_OFF, 0);
  EACH_STEP(n) {
    MUST(recv(p[1], in, 2, MSG_PEEK) == 2 && in[0] == (char)(2 * n));
    MUST(option(p[1], SOL_SOCKET, SO_PEEK_OFF) == 2 * n + 2);
  }
  MUST(read(p[1], in, 1) == 1 && in[0] == 0);
  MUST(recv(p[1], in, 2, MSG_PEEK) == 2 && in[0] == (char)(2 * STEPS));
}

static void routes(void) {
  int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
  struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
  MUST(bind(s, (void*)&a, sizeof a) == 0);
  struct sockaddr_nl own, is;
  socklen_t l = sizeof own;
  getsockname(s, (void*)&own, &l);
  EACH_STEP(n) {
    struct {
      struct nlmsghdr h;
      struct ifinfomsg i;
    } ask = {{sizeof ask, RTM_GETLINK, NLM_F_REQUEST, (uint32_t)n + 1, 0}, {.ifi_index = 1}};
    char in[8192];
    MUST(send(s, &ask, sizeof ask, 0) == sizeof ask);
    if (n % 3 == 0) rest_ms(2);
    MUST(recv(s, in, sizeof in, 0) > 0);
    struct nlmsghdr* h = (void*)in;
    MUST(h->nlmsg_type == RTM_NEWLINK && h->nlmsg_seq == (uint32_t)n + 1);
    l = sizeof is, getsockname(s, (void*)&is, &l);
    MUST(is.nl_pid == own.nl_pid && is.nl_groups == RTMGRP_LINK);
  }
}

static void filtered(void) {
  struct sock_filter only[] = {{BPF_LD | BPF_B | BPF_ABS, 0, 0, 0},
                               {BPF_JMP | BPF_JSET | BPF_K, 0, 1, 1},
                               {BPF_RET | BPF_K, 0, 0, 0},
                               {BPF_RET | BPF_K, 0, 0, 65535}};
  struct sock_fprog program = {4, only};
  int p[2];
  MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0);
  MUST(setsockopt(p[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
  EACH_STEP(n) {
    for (char c = 0; c < 6; c++) (void)!write(p[0], &c, 1);
    char in;
    for (char c = 0; c < 6; c += 2) MUST(read(p[1], &in, 1) == 1 && in == c);
  }
  char in;
  MUST(recv(p[1], &in, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

PROGRAMS(P(tcp4), P(tcp6), P(half_closed), P(urgent), P(udp), P(rights), P(unix_names), P(queue_of_clients),
         P(deferred_clients), P(peeked), P(routes), P(filtered))
