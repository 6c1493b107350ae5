#include "core/serving/table_manifest.h"

#include <cstdio>
#include <sstream>

#include "core/base/crc32c.h"

namespace tsps {
namespace {

constexpr char kManifestTitle[] = "tf_sparse_ps serving table ";
constexpr char kManifestFormat[] = "1";

std::string Hex(uint32_t number) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", number);
  return text;
}

// Paths lead into the version's folder only.
bool IsInside(const std::string& path) {
  return !path.empty() && path[0] != '/' && ("/" + path + "/").find("/../") == std::string::npos;
}

}  // namespace

bool IsManifest(const std::string& content) { return content.rfind(kManifestTitle, 0) == 0; }

std::string EncodeManifest(const TableManifest& manifest) {
  std::ostringstream text;
  text << kManifestTitle << kManifestFormat << "\ntable " << manifest.table << "\nstep "
       << manifest.step << "\n";
  for (const ManifestFile& file : manifest.files) {
    text << "file " << file.path << " " << file.bytes << " " << Hex(file.header_crc) << "\n";
  }
  const std::string body = text.str();
  return body + "crc32c " + Hex(Crc32c(0, body.data(), body.size())) + "\n";
}

Result<TableManifest> DecodeManifest(const std::string& content, const std::string& path) {
  if (!IsManifest(content)) {
    return Error(Code::kDataLoss, path, " is not the manifest of a serving table");
  }
  std::istringstream text(content);
  std::string line;
  std::getline(text, line);
  if (const std::string format = line.substr(sizeof(kManifestTitle) - 1);
      format != kManifestFormat) {
    return OtherFormat(path, format, kManifestFormat);
  }
  const size_t last = content.rfind("crc32c ");
  if (last == std::string::npos ||
      content.substr(last) != "crc32c " + Hex(Crc32c(0, content.data(), last)) + "\n") {
    return Damaged(path, "its checksum does not match");
  }
  TableManifest manifest;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "table") {
      words >> manifest.table;
    } else if (name == "step") {
      words >> manifest.step;
    } else if (name == "file") {
      ManifestFile file;
      words >> file.path >> file.bytes >> std::hex >> file.header_crc;
      if (!IsInside(file.path)) return Damaged(path, "it names a file outside: ", file.path);
      manifest.files.push_back(file);
    }
    if (words.fail()) return Damaged(path, "the line '", line, "' is not as expected");
  }
  if (manifest.files.empty()) return Damaged(path, "it names no files");
  return manifest;
}

}  // namespace tsps
