// A job's checkpoint that goes to the command of CKPT_TO (image/format/job_stream.h): all members write into
// one pipe, in turns.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/checks/named_points.h"
#include "job/capture/coordinator/coordinator.h"
#include "job/directory/job_directory.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

// The command is started when all threads go on; the pipe is there now, so that members get it with what they
// are asked.
Result<void> Coordinator::open_stream(const char* program) {
  CKPT_TRY(note_streamed(directory_, place.sequence));
  const ImageCommand::Facts facts{name_.text, own_job.identity.id, place.sequence, program,
                                  own_job.identity.root};
  CKPT_TRY(command_.prepare(user_settings().to, facts, directory_, arena_));
  const long turn = sys::call(__NR_eventfd2, 1L, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
  if (sys::failed(turn))
    return make_error(ExitCode::kSystem, static_cast<int>(turn), "no eventfd for the stream of the job ({})",
                      errno_name(static_cast<int>(turn)));
  stream_turn_.reset(static_cast<int>(turn));
  // A member may die while it has the turn, which this process's writer then waits for.
  const long ends = sys::call(__NR_epoll_create1, static_cast<long>(EPOLL_CLOEXEC));
  if (sys::failed(ends))
    return make_error(ExitCode::kSystem, static_cast<int>(ends), "no epoll for the stream of the job ({})",
                      errno_name(static_cast<int>(ends)));
  closed_members_.reset(static_cast<int>(ends));
  // Its other end is the command's, and waits as it likes.
  sys::call(__NR_fcntl, command_.fd(), static_cast<long>(F_SETFL), static_cast<long>(O_WRONLY | O_NONBLOCK));
  place.stream = {command_.fd(), stream_turn_.get(), closed_members_.get(), POLLIN, &is_stream_over, this};
  const long r = write_job_head(place.stream);
  return r == 0 ? Result<void>()
                : make_error(ExitCode::kIo, static_cast<int>(-r), "{}: the stream cannot be begun ({})",
                             static_cast<const char*>(name_.text), errno_name(static_cast<int>(r)));
}

void Coordinator::watch_in_stream(int socket) {
  if (!closed_members_.valid()) return;
  epoll_event closed{EPOLLRDHUP, {.fd = socket}};  // and EPOLLHUP, always
  sys::call(__NR_epoll_ctl, closed_members_.get(), static_cast<long>(EPOLL_CTL_ADD), socket, &closed);
}

// The member has sent its image: it may end, or execute another program.
void Coordinator::watch_no_more(int socket) const {
  epoll_event none{};
  if (closed_members_.valid())
    sys::call(__NR_epoll_ctl, closed_members_.get(), static_cast<long>(EPOLL_CTL_DEL), socket, &none);
}

// On the writer's thread, which waits: has a member failed? The agent hears of it from the same sockets, and
// takes its words.
bool Coordinator::is_stream_over(void* coordinator) {
  const auto& self = *static_cast<const Coordinator*>(coordinator);
  epoll_event events[8];
  const long count = sys::call(__NR_epoll_pwait, self.closed_members_.get(), events, 8L, 0L, nullptr, 8L);
  for (long i = 0; i < count; ++i) {
    MessageHead head{};
    const int socket = events[i].data.fd;
    const long n = sys::call(__NR_recvfrom, socket, &head, sizeof(head),
                             static_cast<long>(MSG_PEEK | MSG_DONTWAIT), nullptr, nullptr);
    if (n != sizeof(head) || head.step != static_cast<uint32_t>(Step::kWritten)) return true;
    self.watch_no_more(socket);
  }
  return false;
}

// All images are in the stream. The checkpoint counts when the command says so.
Result<void> Coordinator::commit_to_stream() {
  CKPT_TRY(command_.await_launch());
  place.stream.watch = -1;  // nothing more is wanted of the members
  const ScopedFd file(static_cast<int>(
      sys::call(__NR_openat, temporary_.get(), kManifestName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0L)));
  struct stat st {};
  std::byte* text = nullptr;
  if (file.valid() && sys::call(__NR_fstat, file.get(), &st) == 0)
    text = static_cast<std::byte*>(arena_.allocate(static_cast<size_t>(st.st_size) + 1));
  if (text == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
  const auto bytes = static_cast<uint64_t>(st.st_size);
  if (sys::call(__NR_pread64, file.get(), text, bytes, 0L) != st.st_size)
    return make_error(ExitCode::kIo, EIO, "the manifest cannot be read");
  long r = write_job_frame(place.stream, JobFrame::kBytes, kJobManifestEntry, bytes, text);
  if (r == 0) r = write_job_frame(place.stream, JobFrame::kWhole, kJobManifestEntry, bytes);
  if (r == 0) r = write_job_frame(place.stream, JobFrame::kEnd, report_.members + 1, 0);
  if (r != 0)
    return make_error(ExitCode::kIo, static_cast<int>(-r), "{}: the manifest cannot be sent ({})",
                      static_cast<const char*>(name_.text), errno_name(static_cast<int>(r)));
  points::at("coordinator.streamed");
  CKPT_TRY(command_.publish(*command_.only_backend(), bytes, false));
  *fmt::format_to_n(report_.path, sizeof(report_.path) - 1, "{}", static_cast<const char*>(name_.text)).out =
      '\0';
  return {};
}

Error Coordinator::explain(const Error& error) {
  if (!place.streamed || !command_.is_launched() || error.code != ExitCode::kIo) return error;
  if (error.sys_errno != ECANCELED) return command_.explain(error);  // of EPIPE only the command can tell why
  if (const Result<void> heard = hear_members(); !heard.ok()) return command_.explain(heard.error());
  again = true;
  return make_error(ExitCode::kInternal, 0,
                    "a process of the job does not go on with its part; it is taken again");
}

}  // namespace ckpt::job
