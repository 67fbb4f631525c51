// The worked example of docs/image_format.md: a small image, and its bytes explained one by one.
#pragma once

#include <string>

namespace ckpt {

// The file's bytes: always the same. Empty when it cannot be written.
std::string example_image();
// Every field of every part: offset, bytes, name and meaning.
std::string describe_image(const std::string& bytes);
// The text between the markers of the document replaced by the example; empty if they are missing.
std::string with_example(const std::string& document, const std::string& example);

}  // namespace ckpt
