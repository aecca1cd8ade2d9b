/* Splits CSV text into lines and fields. */
#pragma once

#include "base/core.h"

/* Parses the next field of a NUL-terminated line in place: strips surrounding blanks, unquotes "..." and
 * replaces "" inside by ". Advances *at, to NULL after the last field. Returns NULL if the quotes are
 * malformed. */
DDP_LIB char *ddp__csv_field(char **at);
/* Splits off the next line without its line end (LF, CRLF or CR). Returns NULL at the end of the text. */
DDP_LIB char *ddp__csv_line(char **at);
