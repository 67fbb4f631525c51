#include "cli/keeper/part_words.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "cli/text/failure.h"
#include "cluster/keeper/word_differences.h"
#include "image/read/image_chain.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kLeast = 256 << 10;  // bytes of an image for which it may pay

// "X.job/12.ckpt": of an image's path, its place in the keeper's directory.
std::string place_in_keeper(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t before = slash == std::string::npos || slash == 0 ? slash : path.rfind('/', slash - 1);
  return before == std::string::npos ? "" : path.substr(before + 1);
}

bool is_place_in_keeper(const std::string& name) {
  const size_t slash = name.find('/');
  return keeper::is_part_file_name(name) && slash != std::string::npos && name[0] != '.' &&
         std::string_view(name).substr(0, slash).ends_with(kJobSuffix);
}

// An increment and what it is an increment to.
struct Below {
  ImageReader image;
  ImageChain chain;
};

// ground: the part of an older checkpoint, for images that are increments to none. Nothing: there is nothing
// to compare it with.
std::optional<Below> open_below(const PartInKeeper& part, const std::string& name,
                                const std::string& ground) {
  if (!name.ends_with(".ckpt")) return {};
  auto image = ImageReader::open(part.path() + "/" + name, ImageParts::kMemory);
  if (!image.ok() || !image->stored_plainly()) return {};
  const ParentImage& parent = image->brief().parent;
  const bool full = parent.sequence == 0;
  if (full && ground.empty()) return {};
  auto chain = ImageChain::open(part.path() + "/" + (full ? "../" + ground + "/" + name : parent.name));
  if (!chain.ok()) return {};
  const ImageBrief& brief = chain->brief();
  if (memcmp(brief.run_id, image->brief().run_id, sizeof(brief.run_id)) != 0 ||
      (!full && (brief.sequence != parent.sequence || brief.meta_checksum != parent.state)))
    return {};
  for (size_t i = 0; i < chain->size(); ++i) {
    if (!chain->image(i).stored_plainly() || !is_place_in_keeper(place_in_keeper(chain->image(i).path())))
      return {};
  }
  return Below{std::move(*image), std::move(*chain)};
}

// Where the image's memory was before, by its places in the file.
std::vector<keeper::OldPlace> old_places(const Below& b) {
  std::vector<keeper::OldPlace> old;
  const auto pieces = b.chain.pieces();
  size_t p = 0;
  for (const Extent& e : b.image.extents()) {
    if (e.codec != Codec::kNone) continue;
    const Addr end = e.address + e.length;
    while (p < pieces.size() && pieces[p].address + pieces[p].length <= e.address) ++p;
    for (size_t at = p; at < pieces.size() && pieces[at].address < end; ++at) {
      const MemoryPiece& piece = pieces[at];
      const Extent& was = b.chain.extent_of(piece);
      if (was.codec != Codec::kNone) continue;
      const Addr from = std::max(e.address, piece.address), to = std::min(end, piece.address + piece.length);
      old.push_back({e.offset.value + (from - e.address), to - from, piece.image,
                     was.offset.value + piece.into + (from - piece.address)});
    }
  }
  // The records that describe the process are much as they were.
  const ImageBrief &now = b.image.brief(), &then = b.chain.brief();
  const uint64_t meta = std::min(now.meta_bytes, then.meta_bytes) / keeper::kWordsBlock * keeper::kWordsBlock;
  if (meta != 0) old.push_back({now.meta_offset, meta, 0, then.meta_offset});
  std::sort(old.begin(), old.end(),
            [](const keeper::OldPlace& one, const keeper::OldPlace& other) { return one.at < other.at; });
  std::vector<keeper::OldPlace> joined;
  for (const keeper::OldPlace& o : old) {
    keeper::OldPlace* last = joined.empty() ? nullptr : &joined.back();
    const uint64_t end = last != nullptr ? last->at + last->bytes : 0;
    // Memory that repeats lies in the file once.
    if (o.at < end || o.at % keeper::kWordsBlock != 0 || o.at_source % keeper::kWordsBlock != 0) continue;
    if (last != nullptr && o.at == end && o.source == last->source &&
        o.at_source == last->at_source + last->bytes)
      last->bytes += o.bytes;
    else
      joined.push_back(o);
  }
  return joined;
}

// Opens files of the keeper that differences name.
keeper::OpenSource sources_in(const PartInKeeper& part) {
  return [&part](const std::string& name) {
    if (!is_place_in_keeper(name)) return -1;
    const ScopedFd directory(openat(part.directory.get(), name.substr(0, name.find('/')).c_str(),
                                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    return openat(directory.get(), name.substr(name.find('/') + 1).c_str(),
                  O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  };
}

// Their length; 0: there are none.
Result<uint64_t> write_words_of(const Below& b, uint64_t bytes, keeper::PartWords to, uint64_t* sum) {
  std::vector<int> sources;
  std::vector<std::string> names;
  for (size_t i = 0; i < b.chain.size(); ++i) {
    sources.push_back(b.chain.image(i).fd());
    names.push_back(place_in_keeper(b.chain.image(i).path()));
  }
  const auto old = old_places(b);
  if (old.empty()) return uint64_t{0};
  keeper::WordsStats stats;
  auto length =
      keeper::write_words(b.image.fd(), bytes, sources, names, old, bytes / 4 * 3, to.fd, to.at, &stats);
  *sum = stats.sum;
  return length;
}

}  // namespace

std::string words_of_part(const std::string& part) {
  return part.substr(0, part.size() - kJobSuffix.size()) + ".words";
}

std::vector<keeper::PartFile> make_part_words(const PartInKeeper& part, const keeper::PartStream& stream,
                                              keeper::PartWords words, const std::string& ground) {
  std::vector<keeper::PartFile> made;
  for (size_t i = 0; i < stream.files().size(); ++i) {
    keeper::PartFile file = stream.files()[i];
    if (file.bytes < kLeast) continue;
    const auto below = open_below(part, file.name, ground);
    if (!below) continue;
    auto bytes = write_words_of(*below, file.bytes, words, &file.sum);
    if (!bytes.ok()) return {};
    if (*bytes == 0) continue;
    file.words = *bytes;
    words.at += file.words;
    made.push_back(std::move(file));
  }
  // Of those that came out too long.
  if (ftruncate(words.fd, static_cast<off_t>(words.at)) != 0) return {};
  return made;
}

Result<void> write_from_part_words(const PartInKeeper& part, const keeper::PartStream& stream) {
  for (size_t i = 0; i < stream.files().size(); ++i) {
    const keeper::PartFile& file = stream.files()[i];
    if (file.words == 0) continue;
    const auto read = [&stream, i](uint64_t at, std::span<std::byte> to) {
      return stream.read_words(i, at, to);
    };
    CKPT_TRY(keeper::write_from_words(file.words, read, stream.fd(i), file.bytes, sources_in(part)));
    auto sum = keeper::checksum_of(stream.fd(i));
    if (!sum.ok()) return sum.error();
    if (*sum != file.sum)
      return failure(ExitCode::kImageDamaged,
                     fmt::format("what was computed for {}/{}", part.name, file.name),
                     "is not what this checkpoint has there", "use an older checkpoint");
  }
  return {};
}

}  // namespace ckpt::cli
