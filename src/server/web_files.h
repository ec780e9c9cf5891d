// The web page's files (folder web/), which the build puts into the program: cmake/embed_web.cmake.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

struct WebFile {
  std::string name;  // "index.html", "app.js", ...
  std::string_view bytes;
};

const std::vector<WebFile>& web_files();

}  // namespace dsv4
