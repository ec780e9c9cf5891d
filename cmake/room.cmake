# dsv4_room(NAME name SOURCES a.cc ... [DEPS targets ...] [TESTS a_test.cc ...] [TEST_DEPS targets ...])
# One static library `dsv4_<name>` and, with TESTS, one gtest program `<name>_test` whose cases are ctest cases.
# Lists are explicit; tools/check_tests_registered.py fails on a *_test.cc that no list names.
function(dsv4_room)
  cmake_parse_arguments(ROOM "" "NAME" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  add_library(dsv4_${ROOM_NAME} STATIC ${ROOM_SOURCES})
  target_include_directories(dsv4_${ROOM_NAME} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dsv4_${ROOM_NAME} PUBLIC ${ROOM_DEPS})
  if(ROOM_TESTS)
    dsv4_test(NAME ${ROOM_NAME}_test SOURCES ${ROOM_TESTS} DEPS dsv4_${ROOM_NAME} ${ROOM_TEST_DEPS})
  endif()
endfunction()

# dsv4_test(NAME name SOURCES ... DEPS ... [TIMEOUT seconds] [LABEL label] [SERIAL]): a gtest program; tests run in the source root, where
# data lies. The label is the program's name unless given; `soak` keeps it for ./test --soak. SERIAL tests measure time: nothing runs beside.
function(dsv4_test)
  cmake_parse_arguments(T "SERIAL" "NAME;TIMEOUT;LABEL" "SOURCES;DEPS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  if(NOT T_LABEL)
    set(T_LABEL ${T_NAME})
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  # GoogleTest's macros are statements with an else of their own, and test tables leave members out.
  target_compile_options(${T_NAME} PRIVATE -Wno-dangling-else -Wno-missing-field-initializers)
  target_link_libraries(${T_NAME} PRIVATE ${T_DEPS} GTest::gmock GTest::gtest_main Threads::Threads)
  gtest_discover_tests(${T_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS ${T_LABEL} RUN_SERIAL ${T_SERIAL})
endfunction()

# dsv4_fuzz(NAME x_fuzz SOURCES ... DEPS ...): a libFuzzer program, only in the fuzz preset. First inputs: tests/fuzz/x, words: tests/fuzz/x.dict.
function(dsv4_fuzz)
  cmake_parse_arguments(F "" "NAME" "SOURCES;DEPS" ${ARGN})
  if(DSV4_FUZZ)
    add_executable(${F_NAME} ${F_SOURCES})
    target_link_libraries(${F_NAME} PRIVATE ${F_DEPS})
    target_link_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY DSV4_FUZZ_TARGETS ${F_NAME})
    set_property(GLOBAL APPEND_STRING PROPERTY DSV4_FUZZ_FILES "$<TARGET_FILE:${F_NAME}>\n")
  endif()
endfunction()

# After all rooms: the target fuzz_targets builds every fuzz program, and fuzz_targets.txt lists their files for ./test.
function(dsv4_list_fuzz_targets)
  get_property(targets GLOBAL PROPERTY DSV4_FUZZ_TARGETS)
  get_property(files GLOBAL PROPERTY DSV4_FUZZ_FILES)
  add_custom_target(fuzz_targets DEPENDS ${targets})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/fuzz_targets.txt CONTENT "${files}")
endfunction()
