# cmake -DFILES=a;b -DMARKED=path-or-empty -DOUTPUT=web_files.cc -P embed_web.cmake
# Writes the web page's files into a C++ source, so that the program serves them without any file beside it. MARKED is the Markdown
# reader (marked, MIT licence); without it the page shows answers as plain text.
set(names "")
set(body "")
foreach(file ${FILES} ${MARKED})
  get_filename_component(name ${file} NAME)
  if("${file}" STREQUAL "${MARKED}")
    set(name marked.js)
  endif()
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(MAKE_C_IDENTIFIER ${name} id)
  string(APPEND body "const unsigned char k_${id}[] = {${bytes}0};\n")
  string(APPEND names "    {\"${name}\", {reinterpret_cast<const char*>(k_${id}), sizeof(k_${id}) - 1}},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/embed_web.cmake.\n#include \"server/web_files.h\"\n\nnamespace dsv4 {\nnamespace {\n\n${body}\n}  // namespace\n\n\
const std::vector<WebFile>& web_files() {\n  static const std::vector<WebFile> files = {\n${names}  };\n  return files;\n}\n\n}  // namespace dsv4\n")
