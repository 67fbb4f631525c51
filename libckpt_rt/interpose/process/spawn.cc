// vfork, posix_spawn, posix_spawnp, system and popen: hooks::before_spawn() is called before they make a
// process. Processes that libc makes for itself beyond these (wordexp) are found when the job's members are
// listed again.
#include <spawn.h>
#include <stdio.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/process/exec_beside.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

using Spawn = int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                  char* const[], char* const[]);

}  // namespace

CKPT_INTERPOSE(int, posix_spawn, pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  hooks::before_spawn();
  Spawn* const spawn = real_function(RealFunction::kPosixSpawn).as<Spawn>();
  CKPT_IF_BESIDE(path, argv, envp,
                 if (spawn(pid, new_argv[0], actions, attributes, new_argv, new_envp) == 0) return 0);
  return spawn(pid, path, actions, attributes, argv, envp);
}

CKPT_INTERPOSE(int, posix_spawnp, pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  hooks::before_spawn();
  Spawn* const spawn = real_function(RealFunction::kPosixSpawn).as<Spawn>();
  if (char path[PATH_MAX]; search_path(file, path))
    CKPT_IF_BESIDE(path, argv, envp,
                   if (spawn(pid, new_argv[0], actions, attributes, new_argv, new_envp) == 0) return 0);
  return real_function(RealFunction::kPosixSpawnp).as<Spawn>()(pid, file, actions, attributes, argv, envp);
}

CKPT_INTERPOSE(int, system, const char* command) {
  if (command != nullptr) hooks::before_spawn();
  return real_function(RealFunction::kSystem).as<int(const char*)>()(command);
}

CKPT_INTERPOSE(FILE*, popen, const char* command, const char* mode) {
  hooks::before_spawn();
  return real_function(RealFunction::kPopen).as<FILE*(const char*, const char*)>()(command, mode);
}

CKPT_INTERPOSE_ALIAS(popen, _IO_popen);

// For vfork.S: the address of libc's vfork, which returns twice, to the caller of ours.
extern "C" [[gnu::visibility("hidden")]] void* ckpt_before_vfork() {
  hooks::before_spawn();
  return real_function(RealFunction::kVfork).address;
}
