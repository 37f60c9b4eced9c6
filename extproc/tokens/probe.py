"""Texts on which a second library has to give the same tokens as the first before it is trusted.

They are what has told libraries apart: text in many scripts, marks that normalisation moves, blanks of all kinds where
patterns look ahead, control tokens inside text, and text so long that a library cuts it to pieces.
"""

import base64
import random
from collections.abc import Sequence
from itertools import product
from typing import Final

_SCRIPTS: Final = (
    "",
    "a",
    "Hello, world!",
    "The server counts each prompt's tokens, isn't it nice? WE'LL see, they're HERE; she'd say I've 3.14 of 1,000,000.",
    "snake_case camelCase SCREAMING_CASE kebab-case x2y3 don’t “quoted” naïve café Zürich ﬁne ﬂow Ǆ ß ẞ İ ı",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ПРИВЕТ Мир",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. ΑΘΗΝΑ Αθήνα",
    "敏捷的棕色狐狸跳过了懒狗。负载均衡器计算每个提示的令牌数，然后选择节点！",
    "いろはにほへと ちりぬるを。カタカナ ｶﾀｶﾅ 東京タワー、２０２６年。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "\u1100\u1161\u11a8\u1112\u1161\u11ab \ud55c\uae00",
    "مرحبا بالعالم، هذا نصّ عربيّ مُشَكَّل. ١٢٣٤٥",
    "שלום עולם, זהו מִבְחָן 123.",
    "नमस्ते दुनिया, यह एक परीक्षण है। क्षत्रिय १२३",
    "สวัสดีชาวโลก นี่คือการทดสอบ ๑๒๓",
    "வணக்கம் உலகம் ௧௨௩ తెలుగు ಕನ್ನಡ മലയാളം বাংলা",
    "Tiếng Việt: Chào thế giới, đây là một bài kiểm tra ở Hà Nội.",
    "ሰላም ዓለም ᏣᎳᎩ ကမ္ဘာ ភាសាខ្មែរ ພາສາລາວ བོད་སྐད",
    "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 𐍈𐌰 𠮷野家 🄰🅱 ➊➋ ⅣⅫ ½¾ ²³",
)
_MARKS: Final = (
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "o\u0302\u0323 o\u0323\u0302 ộ q\u0307\u0323",
    "a" + "\u0301" * 40 + "b",
    "\u0301\u0301 \u0301a \u200d\u0301",
    "ﷺ ﬃ Å Å Ω Ω ℌ ㎏ ｆｕｌｌｗｉｄｔｈ",
    "\u1e9b\u0323 \u0344 \u2126 \uf900 \U0002f800",
    "👍 👍🏽 👩‍👩‍👧‍👦 🧑🏿‍🚀 🏳️‍🌈 🇩🇪🇯🇵🇩 1️⃣ ☕️ ☕ ❤️‍🔥",
    "🙂" * 30,
    "x\u200by\u200cz\u200d\u2060\ufeffw",
    "\u202eabc\u202c \u2066def\u2069",
)
_BLANKS: Final = (
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    " a",
    "a ",
    "  a  b   c    d     ",
    "a\n\nb\n\n\nc \n d\n e",
    "a\r\nb\r\n\r\nc\rd\r\r\n",
    "\ta\t\tb \t c\t \td",
    "    if x:\n        return  y\n\n\n    else :\n\t\tpass\n",
    "a\u00a0b\u2003c\u3000d\u1680e\u2028f\u2029g\u0085h\x0bi\x0cj\u180ek",
    "a" + " " * 15 + "b" + " " * 16 + "c" + " " * 17 + "\n" + " " * 80,
    "\n" * 20 + "x" + "\n \n  \n",
    " \u0301 \u200d a",
    " \u3000 \u00a0x",
)
_SIGNS: Final = (
    "\0",
    "a\0b\0\0c",
    "\x01\x02\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "\ufffd\ufffe\uffff\U0010ffff\ue000",
    "0 00 000 0000 00000 1234567890 12345678901234567890 0x1F 1e-10 1_000",
    "٣٣٣ ३३३ ３３３ 𝟛𝟛𝟛 ௩௩௩",
    "!!! ??? ... --- === ### *** $$$ %%% &&& @@@ ~~~ ^^^ ||| \\\\\\ ///",
    "a!b?c.d,e;f:g'h\"i(j)k[l]m{n}o<p>q/r\\s|t",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D ’s ’ll ſ 'ſ",
    "x's X'S it'S 'sfoo 'reality ''s '''",
    "→ ← ∀x∈ℝ: ∑ᵢ xᵢ² ≤ ∫f dx ± √2 ≠ ∞ ¬p ∧ q",
    "€100 £20 ¥3,000 ₹50 ©®™ § ¶ † ‡ • … – —",
    "┌──┬──┐\n│  │██│\n└──┴──┘ ▁▂▃ ⣿⣷",
    "http://user:pw@host.example:8080/a/b.c?d=e&f=%20g#h mail@x.example",
    '{"id": 17, "name": "x\\n\\u00e9", "list": [1, 2.5, -3e8, null, true], "nested": {"a": {"b": []}}}',
    "<html><body class='x'>&amp; &lt;b&gt; <!-- c --></body></html>",
    "def f(x: int) -> str:\n    '''Doc.'''\n    return f\"{x!r:>10}\" if x != 0 else r'\\d+'  # fine\n",
    "#include <map>\nint main(){for(int i=0;i<10;++i){m[i]+=i<<2;}return 0;}//end\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 5 AND b IS NOT NULL GROUP BY 1;",
    "| a | b |\n|---|:-:|\n| 1 | `x` |\n\n- **bold** _it_\n1. [l](u)\n> q\n```sh\nls -la\n```",
    "\\frac{a}{b} $x^2$ \\begin{align} & = \\\\ \\end{align}",
    "[INST] <<SYS>> </s> <s> <unk> [PAD] <|x|> <| x |> <|",
    "<think>\n\n</think> <tool_call>{}</tool_call> <|im_start <|im_start|",
    "▁a▁▁b ▁ Ġa Ċb ĉ âĢĵ ##ing",
)


def short_texts(added_tokens: Sequence[str] = ()) -> list[str]:
    """About a hundred texts of up to 2 KB; `added_tokens` are some of the vocabulary's."""
    return [*_SCRIPTS, *_MARKS, *_BLANKS, *_SIGNS, *_with(added_tokens), *_noise()]


def _with(added_tokens: Sequence[str]) -> list[str]:
    """The vocabulary's control tokens in text, with blanks around them and without, whole and in part."""
    return [
        f"{one}a{one} b {one}  {one}\n{one}\n\n{one}{one}_c{one}1 \u0301{one}\u0301 {one[:-1]}{one}{one[1:]} {one[:-1]}"
        for one in added_tokens
    ]


def _noise() -> list[str]:
    # Not random: the same texts at each start.
    chance = random.Random(3)  # noqa: S311
    data = chance.randbytes(600)
    letters = "etaoin shrdlu\n.,'ETAé中🙂1 \u0301\t "
    return [
        base64.b64encode(data).decode(),
        data.hex(),
        data.hex().upper(),
        "".join(chr(33 + byte % 94) for byte in data),
        *("".join(chance.choices(letters, k=400)) for _ in range(4)),
        *("".join(chr(chance.randrange(0x20, 0xD800)) for _ in range(200)) for _ in range(4)),
    ]


def long_texts() -> list[str]:
    """Texts of 8 to 80 KB: what is remembered of one must not be taken for the next, and long matches not be cut."""
    words = ("prompt", "token", "the", "of", "balance", "Node", "42", "naïve", "一個", "it's")
    prose = " ".join("".join(pair) for pair in product(words, repeat=2)) + "\n"
    start = prose * 8
    blanks = start + " " * 700
    return [
        blanks + "x" + prose,
        blanks + " ",
        blanks + "\n",
        blanks + "\tx",
        blanks + "y",
        start * 10 + "x" * 3000 + " " * 1500 + "1" * 2000 + "!" * 1500 + prose + "\n" * 1500 + "好" * 1000,
    ]
