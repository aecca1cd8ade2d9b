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
	@NO_MKDOCS_2_WARNING=1 build/mkdocs/bin/mkdocs build --quiet --strict
	@mv build/docs/html build/site/reference/api/html
