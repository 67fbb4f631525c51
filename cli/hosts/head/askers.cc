#include "cli/hosts/head/askers.h"

#include <cstdio>

#include "cli/hosts/job/users.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr int kQuestionMs = 1000;

std::optional<MoveWish> move_in(const Json& question) {
  return question.contains("move") ? std::optional(move_wish_in(question)) : std::nullopt;
}

// False: it has a value of another kind than is meant, perhaps from a ckpt of another version. The job goes
// on.
bool read_question(const Json& question, Asker& asker) {
  try {
    asker.leave_out = question.value("leave_out", "");
    asker.move = move_in(question);
    asker.back = back_wish_in(question);
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

Json not_understood() {
  return answer_of_error(failure(ExitCode::kUsage, "the job's head", "does not understand what was asked",
                                 "ask with the ckpt that the job was started with"));
}

}  // namespace

Json answer_of_error(const Error& error) {
  return {{"code", static_cast<int>(error.code)}, {"error", std::string(error.message())}};
}

void Askers::add_silent() {
  waiting_.emplace_back();
  waiting_.back().silent = true;
}

void Askers::add(ScopedFd connection) {
  Json question;
  if (!connection.valid() || !is_own_user(connection.get()) ||
      !read_line(connection.get(), question, kQuestionMs))
    return;
  Asker asker;
  asker.connection = std::move(connection);
  if (read_question(question, asker))
    waiting_.push_back(std::move(asker));
  else
    write_line(asker.connection.get(), not_understood());
}

void Askers::add(int host, const Json& question) {
  Asker asker;
  asker.host = host;
  asker.number = question.value("number", 0);  // the agent's
  if (read_question(question, asker))
    waiting_.push_back(std::move(asker));
  else
    tell(asker, not_understood());
}

void Askers::serve_next() {
  served_ = std::move(waiting_.front());
  waiting_.pop_front();
}

void Askers::answer(Json what) {
  if (!served_) return;
  const Asker asker = std::move(*served_);
  served_.reset();
  if (asker.silent && what.contains("error"))
    fmt::print(stderr, "ckpt: checkpoint of the job: {}\n", printable(what["error"].get<std::string>()));
  if (asker.connection.valid()) write_line(asker.connection.get(), what);
  if (asker.host >= 0) tell(asker, std::move(what));
}

void Askers::answer_on_host(Json what) {
  if (served_ && served_->host >= 0) tell(*served_, std::move(what));
}

void Askers::forget_host(int host) {
  std::erase_if(waiting_, [host](const Asker& asker) { return asker.host == host; });
  if (served_ && served_->host == host) served_->host = -1;
}

std::function<void(const Json&)> Askers::take_connection() {
  std::function<void(const Json&)> answer;
  if (served_ && served_->connection.valid()) {
    auto connection = std::make_shared<ScopedFd>(std::move(served_->connection));
    answer = [connection](const Json& what) { write_line(connection->get(), what); };
  }
  served_.reset();
  return answer;
}

void Askers::answer_all(const Json& what) {
  while (served_ || waiting()) {
    if (!served_) serve_next();
    answer(what);
  }
}

void Askers::tell(const Asker& asker, Json what) {
  what["say"] = "answer";
  what["number"] = asker.number;
  crew_.tell(asker.host, what);
}

}  // namespace ckpt::cli
