// Prints the worked example of docs/image_format.md, or puts it into the document:
//     format_example
//     format_example --update docs/image_format.md
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/image/example_image.h"

int main(int argc, char** argv) {
  std::string bytes = ckpt::example_image();
  if (bytes.empty()) {
    std::fprintf(stderr, "the example cannot be written; is there room in TMPDIR?\n");
    return 74;
  }
  std::string text = ckpt::describe_image(bytes);
  if (argc == 1) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  if (argc != 3 || std::strcmp(argv[1], "--update") != 0) {
    std::fprintf(stderr, "usage: %s [--update docs/image_format.md]\n", argv[0]);
    return 64;
  }
  std::ifstream in(argv[2]);
  std::string document = ckpt::with_example({std::istreambuf_iterator<char>(in), {}}, text);
  if (document.empty()) {
    std::fprintf(stderr, "%s: no place for the example; keep the lines '<!-- example: … -->'\n", argv[2]);
    return 65;
  }
  std::ofstream(argv[2]) << document;
  return 0;
}
