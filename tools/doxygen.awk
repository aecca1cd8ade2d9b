# Prepares a header for Doxygen: its public part, with documentation comments in place of plain ones. The header is given
# twice: the first pass finds the structs that it defines, whose forward declarations would be documented twice. A comment
# `/* ---- title ---- */` starts a group, which becomes one man page. An indented list in a comment stays as it is.
/^#ifdef DREAMDDP_IMPLEMENTATION/ { nextfile }
NR == FNR { if (/^} ddp_[a-z0-9_]+;$/) defined[$2] = 1; next }
/^typedef struct ddp_[a-z0-9_]+ ddp_[a-z0-9_]+;/ && (defined[$4] || seen[$4]++) { next }
/^\/\* ---- .* ---- \*\/$/ {
    gsub(/^\/\* ---- | ---- \*\/$/, "")
    name = $0
    gsub(/[^A-Za-z0-9]+/, "_", name)
    printf "%s/** \\defgroup ddp_%s %s\n \\{ */\n", group ? "/** \\} */\n" : "", name, $0
    group = 1
    next
}
/^\/\*/ { sub(/^\/\*/, "/**"); comment = 1 }
!comment { sub(/^ *\/\* /, "&\001"); sub(/\/\* \001/, "/** ") }
!comment { sub(/[;,}] *\/\* /, "&\001"); sub(/\/\* \001/, "/**< ") }
comment && !list && /^ \*   / { print " * \\verbatim"; list = 1 }
list && !/^ \*   / && !/^ \*$/ { print " * \\endverbatim"; list = 0 }
list && /\*\/$/ { sub(/ *\*\/$/, ""); print; print " * \\endverbatim */"; list = comment = 0; next }
comment && !list { gsub(/#/, "\\#") }
/\*\// { comment = 0 }
{ print }
END { if (group) print "/** \\} */" }
