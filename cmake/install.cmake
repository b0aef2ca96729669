# `cmake --install` and the Debian package: the binary, the bundled model and the licence.
# The binary looks for the model in ../share/kvasir/models (src/engine/model_files.cc).

include(GNUInstallDirs)
install(TARGETS kvasir RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/kvasir-demo DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/kvasir/models
  PATTERN golden.json EXCLUDE)  # only tests read it
install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvasir)

# `cpack --config build/release/CPackConfig.cmake` packs what was installed so.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Kvasir maintainers <maintainers@kvasir.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV-cache engine for LLM inference, with an OpenAI-compatible server")
set(CPACK_PACKAGE_DESCRIPTION
  "Kvasir reads each prompt once: the next turn, and another conversation that begins the same way,
take it from a cache whose answers equal, bit for bit, those without it. It needs a CPU with AVX2.
A small demonstration model is included.")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What `kvasir pull` loads when it runs (src/hub/http_client.cc), and how it knows a hub.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libcurl4")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
