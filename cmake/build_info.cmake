# Writes OUTPUT (a .cc for verify/build_info.h) when its content changes. Run by cmake -P at each build with SOURCE_DIR, OUTPUT, COMPILER,
# FLAGS, BUILD_TYPE, VERSION set.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  set(commit "unknown")
endif()
execute_process(COMMAND git -C ${SOURCE_DIR} diff --quiet HEAD -- RESULT_VARIABLE differs OUTPUT_QUIET ERROR_QUIET)
if(differs)
  set(dirty true)
else()
  set(dirty false)
endif()
string(REPLACE "\"" "\\\"" flags "${FLAGS}")
string(STRIP "${flags}" flags)
set(text "#include \"verify/build_info.h\"

namespace dsv4 {

const BuildInfo& build_info() {
  static const BuildInfo info{\"${commit}\", ${dirty}, \"${COMPILER}\", \"${flags}\", \"${BUILD_TYPE}\", \"${VERSION}\"};
  return info;
}

}  // namespace dsv4
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
