// A static program of Go is executed by ckpt-beside, which puts the library beside it
// (docs/static_programs.md).
//
// Owner:     libckpt_rt/interpose.
// Callers:   threads of the program that execute another one, also in a child of vfork.
// Never:     allocates but on the stack; touches errno.
#pragma once

#include <climits>
#include <cstddef>

namespace ckpt {

// The file that execvp(3) would take for `file`; false: none.
bool search_path(const char* file, char (&path)[PATH_MAX]);

// The words and the environment with which ckpt-beside executes such a program, made on the stack of who has
// this.
class BesideWords {
 public:
  // applies(): path is such a program, and the environment hands the library on.
  BesideWords(const char* path, char* const argv[], char* const envp[]);
  bool applies() const { return applies_; }
  size_t words() const { return words_; }
  size_t variables() const { return variables_; }
  size_t text_bytes() const { return text_bytes_; }
  // argv: words() of them, the first being the command's path; envp: variables(), text: text_bytes().
  void fill(char** argv, char** envp, char* text) const;

 private:
  bool applies_ = false;
  const char* const path_;
  char* const* const argv_;
  char* const* const envp_;
  const char* preload_ = nullptr;
  size_t words_ = 0, variables_ = 0, text_bytes_ = 0;
};

}  // namespace ckpt

// `statement` with new_argv[0], new_argv and new_envp in place of path, argv and envp, where path is such a
// program. Where ckpt-beside is not there that fails, and the program is executed as it is.
#define CKPT_IF_BESIDE(path, argv, envp, statement)                                                         \
  if (const ckpt::BesideWords beside_words(path, argv, envp); beside_words.applies()) {                     \
    auto** new_argv = static_cast<char**>(__builtin_alloca(beside_words.words() * sizeof(char*)));          \
    auto** new_envp = static_cast<char**>(__builtin_alloca(beside_words.variables() * sizeof(char*)));      \
    beside_words.fill(new_argv, new_envp, static_cast<char*>(__builtin_alloca(beside_words.text_bytes()))); \
    statement;                                                                                              \
  }
