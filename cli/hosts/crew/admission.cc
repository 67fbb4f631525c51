#include "cli/hosts/crew/admission.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <utility>

namespace ckpt::cli {

Admission::~Admission() {
  for (const Meeting& m : meetings_) shutdown(m.socket.get(), SHUT_RDWR);
  for (Meeting& m : meetings_) m.thread.join();
}

void Admission::meet(ScopedFd peer) {
  ScopedFd other(fcntl(peer.get(), F_DUPFD_CLOEXEC, 0));
  if (!other.valid()) return;
  Meeting& meeting = meetings_.emplace_back();
  meeting.socket = std::move(other);
  // Signals are for the thread that looks for them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  meeting.thread =
      std::thread([this, &meeting, peer = std::move(peer)]() mutable { greet(std::move(peer), meeting); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Admission::greet(ScopedFd peer, Meeting& meeting) {
  auto link = cluster::SealedLink::accept(std::move(peer), secret_);
  std::vector<std::string> messages;
  Guest guest;
  if (link.ok() && link->receive(messages, true)) {
    guest.here = Json::parse(messages[0], nullptr, false);
    guest.link = std::move(*link);
  }
  const std::lock_guard here(lock_);
  if (guest.here.is_object() && guest.here.value("say", "") == "here") guests_.push_back(std::move(guest));
  meeting.over = true;
}

std::vector<Admission::Guest> Admission::take() {
  std::vector<Guest> come;
  std::list<Meeting> over;
  {
    const std::lock_guard here(lock_);
    come = std::exchange(guests_, {});
    for (auto m = meetings_.begin(); m != meetings_.end();) {
      const auto next = std::next(m);
      if (m->over) over.splice(over.end(), meetings_, m);
      m = next;
    }
  }
  for (Meeting& m : over) m.thread.join();
  return come;
}

}  // namespace ckpt::cli
