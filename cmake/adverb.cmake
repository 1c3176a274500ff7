# SPDX-License-Identifier: Apache-2.0
# One call per folder of src/: every *.cpp beside the CMakeLists.txt is the library, every
# *_test.cpp its unit tests.  A folder is one target; what it may include is what it names in LIBS.
#
#   adverb_library(engine PURE LIBS base wire)
#
# PURE builds without exceptions and RTTI (the sans-I/O folders).
function(adverb_library name)
  cmake_parse_arguments(ARG "PURE" "" "LIBS;TEST_LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp *.c *.S)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|_fuzz\\.cpp$|/main\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(sources)
    add_library(adverb_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(adverb_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(adverb_${name} ${scope} ${PROJECT_SOURCE_DIR}/src)
  foreach(lib ${ARG_LIBS})
    if(TARGET adverb_${lib})
      target_link_libraries(adverb_${name} ${scope} adverb_${lib})
    else()
      target_link_libraries(adverb_${name} ${scope} ${lib})
    endif()
  endforeach()
  if(ARG_PURE AND sources)
    target_compile_options(adverb_${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
  endif()
  if(tests AND ADVERB_TESTS)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE
      adverb_${name} ${ARG_TEST_LIBS} GTest::gmock GTest::gtest_main)
    add_test(NAME ${name}_test COMMAND ${name}_test)
    set_tests_properties(${name}_test PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endfunction()

# What a user of Adverb needs, without tests and benchmarks: `cmake --build --preset release
# --target product`.
function(adverb_product)
  if(NOT TARGET product)
    add_custom_target(product)
  endif()
  add_dependencies(product ${ARGN})
endfunction()
