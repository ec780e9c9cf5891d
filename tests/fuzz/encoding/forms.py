import re
a: str = "x" 'y' + r"\n" \
    + u"\u4f60\x41\101"
b = ("p" + a)  # c
D: Dict[str, str] = {"k": a, 'l': """t
""",}
def f(x="1"):
    """doc"""
    return f"{x!r}"
b += "z"; c, d = "1", "2"
D["m"] = 'n'
