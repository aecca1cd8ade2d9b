# Prepares a header for Doxygen: its public part, with documentation comments in place of plain ones. The header is given
# twice: the first pass finds the structs that it defines, whose forward declarations would be documented twice. Each file of
# src/ in the header becomes a group, and so one man page, which begins with the first comment of the file. An indented list in
# a comment stays as it is.
/^#ifdef DREAMDDP_IMPLEMENTATION/ { nextfile }
NR == FNR { if (/^} ddp_[a-z0-9_]+;$/) defined[$2] = 1; next }
/^typedef struct ddp_[a-z0-9_]+ ddp_[a-z0-9_]+;/ && (defined[$4] || seen[$4]++) { next }
/^\/\* ==== [a-z_\/]+\.c?u?h ==== / {
    title = $3
    sub(/\.[a-z]+$/, "", title)
    name = title
    gsub("/", "_", name)
    printf "%s/** \\defgroup dreamddp_%s %s\n", group ? "/** \\} */\n" : "", name, title
    group = head = 1
    next
}
head && /^\/\*/ { sub(/^\/\*/, ""); comment = 1 }
head && /\*\/$/ { sub(/ *\*\/$/, "\n * \\{ */"); head = comment = 0; print; next }
!head && /^\/\*/ { sub(/^\/\*/, "/**"); comment = 1 }
!comment { sub(/^ *\/\* /, "&\001"); sub(/\/\* \001/, "/** ") }
!comment { sub(/[;,}] *\/\* /, "&\001"); sub(/\/\* \001/, "/**< ") }
comment && !list && /^ \*   / { print " * \\verbatim"; list = 1 }
list && !/^ \*   / && !/^ \*$/ { print " * \\endverbatim"; list = 0 }
list && /\*\/$/ { sub(/ *\*\/$/, ""); print; print " * \\endverbatim */"; list = comment = 0; next }
comment && !list { gsub(/#/, "\\#") }
/\*\// { comment = 0 }
{ print }
END { if (group) print "/** \\} */" }
