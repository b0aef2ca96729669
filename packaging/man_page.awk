# Turns what `kvasir help COMMAND` prints into a man page: -v name=kvasir-serve -v version=0.2.0.

function roff(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  if (text ~ /^[.']/) text = "\\&" text
  return text
}

function section(title) {
  print ".SH " title
  is_after_flag = 0
}

BEGIN {
  printf ".TH %s 1 \"\" \"kvasir %s\" \"Kvasir\"\n", toupper(name), version
  in_title = 1
}

# The first paragraph: "kvasir serve: what it does", in one line or two.
in_title && $0 != "" {
  title = title (title == "" ? "" : " ") $0
  next
}
in_title {
  in_title = 0
  sub(/^[^:]*: */, "", title)
  section("NAME")
  print roff(name) " \\- " roff(title)
  next
}

/^kvasir [a-z]*: flags that few need/ { section("FLAGS THAT FEW NEED"); in_experts = 1; next }
# "Usage: kvasir run [FLAGS] [MODEL] [TEXT]": the command in bold, what stands for something else in italics.
/^Usage: / {
  section("SYNOPSIS")
  sub(/^Usage: /, "")
  at = match($0, / [[A-Z]/)
  print ".B " roff(substr($0, 1, at - 1))
  words = roff(substr($0, at + 1))
  gsub(/[A-Z]+/, "\\fI&\\fR", words)
  print words
  next
}
/^Example/ { section("EXAMPLES"); in_example = 1; next }
/^Commands:/ { section("COMMANDS"); next }
/^Flags:/ { if (!in_experts) section("OPTIONS"); in_example = 0; next }
in_experts && /^  --help / { next }

in_example && /^  / {
  print ".nf"
  print roff(substr($0, 3))
  print ".fi"
  next
}
in_example && $0 == "" { in_example = 0; next }

# The title of a group of flags.
/^ [^ ]/ { print ".SS " roff(substr($0, 2)); next }

# A flag or a command, and the begin of its help.
/^  [^ ]/ {
  left = substr($0, 3)
  text = ""
  at = match(left, "  +")
  if (at) {
    text = substr(left, at + RLENGTH)
    left = substr(left, 1, at - 1)
  }
  print ".TP"
  print ".B " roff(left)
  if (text != "") print roff(text)
  is_after_flag = 1
  next
}

/^   / {
  sub(/^ */, "")
  # An example below a command.
  if ($0 ~ /^kvasir /) print ".br\n\\fI" roff($0) "\\fR"
  else print roff($0)
  next
}

$0 == "" { next }

{
  if (is_after_flag) section("NOTES")
  print roff($0)
}
