#include "cli/hosts/head/askers.h"

#include <cstdio>

#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr int kQuestionMs = 1000;

std::optional<MoveWish> move_in(const Json& question) {
  return question.contains("move") ? std::optional(move_wish_in(question)) : std::nullopt;
}

}  // namespace

Json said_of_error(const Error& error) {
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
  waiting_.push_back({-1, 0, std::move(connection), false, question.value("leave_out", ""), move_in(question),
                      back_wish_in(question)});
}

void Askers::add(int host, const Json& question) {
  waiting_.push_back({host,
                      question.value("number", 0),
                      {},
                      false,
                      question.value("leave_out", ""),
                      move_in(question),
                      back_wish_in(question)});
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
