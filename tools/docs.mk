# The documentation: a site in build/site, whose folder reference/api/html is the API reference, and man pages in build/docs/man.
#   make docs
#   man -M build/docs/man ddp_open
.PHONY: docs deps-docs
deps-docs:
	@tools/deps.sh docs
docs: | deps-docs
	@rm -rf build/docs build/site
	@mkdir -p build/docs
	@for h in dreamddp.h dreamddp_cuda.cuh; do awk -f tools/doxygen.awk $$h $$h >build/docs/$$h || exit 1; done
	@doxygen tools/Doxyfile
	@# Not with --quiet: MkDocs would not count the warnings that --strict turns into errors.
	@NO_MKDOCS_2_WARNING=1 build/mkdocs/bin/mkdocs build --strict >build/docs/mkdocs.log 2>&1 || \
	    { grep -v ^INFO build/docs/mkdocs.log >&2; exit 1; }
	@mv build/docs/html build/site/reference/api/html
