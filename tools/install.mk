# Builds and installs the headers, the library, and files for pkg-config and CMake's find_package.
#   make split    build/dreamddp.h and build/dreamddp.c: for programs that compile the library as a separate file
#   make lib      build/lib/libdreamddp.a and .so, which export only the public functions
#   make wheel    build/wheel: a manylinux wheel and the source distribution of the Python package
#   make install  PREFIX=/usr/local DESTDIR=; dreamddp.pc is for the header, libdreamddp.pc for the library
# The library has TLS if OpenSSL is installed; `make lib TLS=` excludes it.
# With MPI: make lib CC=mpicc CPPFLAGS=-DDDP_USE_MPI
.PHONY: split lib wheel install uninstall
VERSION   = $(shell sed -n 's/^\#define DDP_VERSION_STRING "\(.*\)"/\1/p' dreamddp.h)
SONAME    = libdreamddp.so.$(basename $(VERSION))
OBJCOPY  ?= objcopy

build/dreamddp.c: dreamddp.h tools/amalgamate.py | build deps-header
	tools/amalgamate.py --split build
split: build/dreamddp.c
build/lib/dreamddp.o: packaging/dreamddp.c dreamddp.h build/tls.flags | deps
	@mkdir -p $(@D)
	$(COMPILE) $(WARN) $(FRAMES) $(TLS) -I. -fPIC -fvisibility=hidden -c $< -o $@
	$(OBJCOPY) --localize-hidden $@
build/lib/libdreamddp.a: build/lib/dreamddp.o
	rm -f $@
	$(AR) rcs $@ $<
build/lib/libdreamddp.so: build/lib/dreamddp.o
	$(CC) -shared -Wl,-soname,$(SONAME) $< -o $@ $(LIBS) $(TLS_LIBS)
	ln -sf libdreamddp.so build/lib/$(SONAME)
lib: build/lib/libdreamddp.a build/lib/libdreamddp.so
	@echo "link with: $(CC) program.c build/lib/libdreamddp.a $(LIBS) $(TLS_LIBS)"
wheel: | deps
	@tools/wheel.sh

INCLUDE_DIR = $(DESTDIR)$(PREFIX)/include
LIB_DIR     = $(DESTDIR)$(PREFIX)/lib
HEADER_PC   = $(DESTDIR)$(PREFIX)/share/pkgconfig/dreamddp.pc
LIB_PC      = $(LIB_DIR)/pkgconfig/libdreamddp.pc
CMAKE_DIR   = $(LIB_DIR)/cmake/dreamddp
INSTALLED   = $(INCLUDE_DIR)/dreamddp.h $(INCLUDE_DIR)/dreamddp_cuda.cuh $(LIB_DIR)/libdreamddp.a \
              $(LIB_DIR)/libdreamddp.so.$(VERSION) $(LIB_DIR)/$(SONAME) $(LIB_DIR)/libdreamddp.so $(HEADER_PC) $(LIB_PC) \
              $(CMAKE_DIR)/dreamddpConfig.cmake $(CMAKE_DIR)/dreamddpConfigVersion.cmake
pc = sed 's|@PREFIX@|$(PREFIX)|; s|@LIB@|lib|; s|@VERSION@|$(VERSION)|; s|@NAME@|$(1)|; s|@LIBS@|$(2)|; s|@PRIVATE@|$(3)|' \
     packaging/dreamddp.pc.in
install: lib
	install -d $(sort $(dir $(INSTALLED)))
	install -m 644 dreamddp.h dreamddp_cuda.cuh $(INCLUDE_DIR)
	install -m 644 build/lib/libdreamddp.a $(LIB_DIR)
	install -m 755 build/lib/libdreamddp.so $(LIB_DIR)/libdreamddp.so.$(VERSION)
	ln -sf libdreamddp.so.$(VERSION) $(LIB_DIR)/$(SONAME)
	ln -sf libdreamddp.so.$(VERSION) $(LIB_DIR)/libdreamddp.so
	$(call pc,dreamddp,$(LIBS),) > $(HEADER_PC)
	$(call pc,libdreamddp,-L$${libdir} -ldreamddp,$(LIBS) $(TLS_LIBS)) > $(LIB_PC)
	sed 's|@VERSION@|$(VERSION)|; s|@SONAME@|$(SONAME)|' packaging/installed/dreamddpConfig.cmake.in > $(CMAKE_DIR)/dreamddpConfig.cmake
	sed 's|@VERSION@|$(VERSION)|' packaging/installed/dreamddpConfigVersion.cmake.in > $(CMAKE_DIR)/dreamddpConfigVersion.cmake
	chmod 644 $(HEADER_PC) $(LIB_PC) $(CMAKE_DIR)/*.cmake
uninstall:
	rm -f $(INSTALLED)
	rmdir $(CMAKE_DIR) 2>/dev/null || true
