"""Counts the data members of classes and structs in clang-formatted C++ (tools/sizes.py)."""
import re

# Comments, texts, characters and lines of the preprocessor.
NOTHING = re.compile(r"""//[^\n]*
                         | R"(\w*)\((?:.|\n)*?\)\1"
                         | "(?:[^"\\\n]|\\.)*"
                         | '(?:[^'\\\n]|\\.)'
                         | ^[ ]*\#[^\n]*""", re.M | re.X)
ANNOTATION = re.compile(r"\b(?:KV_\w+|alignas)\((?:[^()]|\([^()]*\))*\)")
CLASS = re.compile(r"\b(?:class|struct)\s+([\w:]+)(?:<[^{;]*>)?(?:\s+final)?\s*(?::[^{;]*)?$")
ACCESS = re.compile(r"\s*(?:public|private|protected)$")
NOT_DATA = re.compile(r"(?:using|typedef|friend|static|struct|class|enum|union|template|public|private|protected)\b")
BRACES = "\x01"  # what stands for the braces of a member's value in a statement


def without_angles(text):
    """Removes the arguments of templates."""
    text, shorter = re.sub(r"<<|<=|>=|->", " ", text), None
    while text != shorter:
        text, shorter = re.sub(r"<[^<>]*>", " ", text), text
    return text


def is_function(statement):
    """Whether a statement, up to its body or its end, declares a function."""
    return "(" in without_angles(statement).partition("=")[0] or "operator" in statement


def declared(statement):
    """How many data members a statement of a class declares."""
    statement = statement.strip()
    if not statement or statement == BRACES or NOT_DATA.match(statement) or is_function(statement):
        return 0
    names, depth = 1, 0
    for character in without_angles(statement):
        depth += (character in "([") - (character in ")]")
        names += character == "," and depth == 0
    return names


def members(text):
    """Yields (name, number of data members) of each class and struct with a body."""
    text = ANNOTATION.sub(" ", NOTHING.sub(" ", text))
    scopes, statement = [], ""  # of each open brace: [name of a class or None, its members, what stood before]
    for piece in re.split(r"([{};:])", text):
        if piece == "{":
            found = None if re.search(r"\benum\b", statement) or is_function(statement) else CLASS.search(statement)
            scopes.append([found[1] if found else None, 0, statement])
            statement = ""
        elif piece == "}":
            name, count, before = scopes.pop()
            if name:
                yield name, count
            is_value = before.count("(") > before.count(")") or not name and not is_function(before) and \
                not re.match(r"\s*(?:namespace|extern|enum)\b", before)
            # After a class names of members may follow; after a value the rest of its member.
            statement = BRACES if name else before + BRACES if is_value else ""
        elif piece == ";":
            if scopes and scopes[-1][0]:
                scopes[-1][1] += declared(statement)
            statement = ""
        elif piece == ":" and ACCESS.match(statement):
            statement = ""
        else:
            statement += piece
