# `cmake --install` and the Debian package: the binary, the bundled model, its documents, and what completes commands
# in a shell. The binary looks for the model in ../share/kvasir/models (src/engine/model_files.cc).

include(GNUInstallDirs)
install(TARGETS kvasir RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/kvasir-demo DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/kvasir/models
  PATTERN golden.json EXCLUDE)  # only tests read it
set(documents ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvasir)
install(FILES LICENSE CHANGELOG.md DESTINATION ${documents})
# For Grafana and Prometheus (docs/monitoring.md).
install(DIRECTORY share/grafana share/prometheus DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/kvasir)
# Messages of the program name them: docs/tenants.md.
install(DIRECTORY docs DESTINATION ${documents} FILES_MATCHING PATTERN *.md PATTERN *.svg)
# The binary writes its man pages and completions when it is installed.
install(CODE "execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/packaging/documents.sh\" \"$<TARGET_FILE:kvasir>\"
  \"${PROJECT_BINARY_DIR}/documents\" COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY ${PROJECT_BINARY_DIR}/documents/ DESTINATION ${CMAKE_INSTALL_DATAROOTDIR})

# The service: of the package alone, whose paths it names.
set(service COMPONENT service EXCLUDE_FROM_ALL)
install(FILES packaging/kvasir.service packaging/kvasir-memory.service
  DESTINATION /usr/lib/systemd/system ${service})
install(PROGRAMS packaging/memory-max DESTINATION /usr/lib/kvasir ${service})
install(FILES packaging/serve.json DESTINATION /etc/kvasir ${service})

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
# What `kvasir pull` and a fleet's store of S3 load when they run (src/base/curl_library.cc), and how a
# hub is known.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libcurl4, adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
# What `kvasir serve --kv-events` loads (src/events/zmq_library.cc).
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libzmq5")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(package_scripts conffiles postinst prerm postrm)
list(TRANSFORM package_scripts PREPEND ${PROJECT_SOURCE_DIR}/packaging/)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${package_scripts})
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};kvasir;ALL;/;${PROJECT_BINARY_DIR};kvasir;service;/")
include(CPack)
