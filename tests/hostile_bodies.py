"""Bodies that cost a server most: for server_bodies_test.py and tools/stress.py."""

import json


def chat(content, **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}


def raw(before, unit, after, size, separator=""):
    """A body of at most `size` bytes: as many units as fit."""
    count = max(1, (size - len(before) - len(after)) // (len(unit) + len(separator)))
    return (before + separator.join([unit] * count) + after).encode()


def escaped_keys(size):
    """Keys inside the JSON text of a call's arguments, whose quotes and colons are escapes."""
    unit = "\\u0022k%d\\u0022\\u003a1"
    keys, length = [], 0
    while length < size - 400 and len(keys) < 60000:
        keys.append(unit % len(keys))
        length += len(keys[-1]) + 1
    return ('{"max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","tool_calls":'
            '[{"type":"function","id":"c","function":{"name":"f","arguments":"{' + ",".join(keys) + '}"}}]},'
            '{"role":"user","content":"z"}]}').encode()


def keys(size, before, after):
    names, length = [], len(before) + len(after)
    while length < size - 40 and len(names) < 60000:
        names.append(f'"k{len(names)}":1')
        length += len(names[-1]) + 1
    return (before + ",".join(names) + after).encode()


def results_of_the_last_calls(size):
    """Calls of "a", as many of "b", and results of the calls of "b"."""
    def call(name):
        return '{"role":"assistant","tool_calls":[{"function":{"name":"%s","arguments":{}}}]}' % name
    result = '{"role":"tool","tool_name":"b","content":"x"}'
    count = max(1, min(3500, (size - 100) // (len(call("a")) + len(call("b")) + len(result) + 3)))  # 65,536 values
    messages = ['{"role":"user","content":"x"}'] + [call("a")] * count + [call("b")] * count + [result] * count
    return ('{"stream":false,"options":{"num_predict":1},"messages":[' + ",".join(messages) + "]}").encode()


USER = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1'


def bodies(size):
    """{name: (path, body)} of about `size` bytes each."""
    text = '{"max_tokens":1,"messages":[{"role":"user","content":"'
    chats = "/v1/chat/completions"
    return {
        "think tags": (chats, raw(text, "</think>", '"}]}', size)),
        "spaces": (chats, raw(text, " ", 'x"}]}', size)),
        "sigmas": (chats, raw(text, "\\u03a3", '"}]}', size)),
        "letters": (chats, raw(text, "a", '"}]}', size)),
        "short words": (chats, raw(text, "a1 ", '"}]}', size)),
        "line ends": (chats, raw(text, "\\n", '"}]}', size)),
        "accents": (chats, raw(text, "e\\u0301\\u0327", '"}]}', size)),
        "tiny messages": (chats, raw('{"max_tokens":1,"messages":[', '{"role":"user","content":"a"}', "]}", size, ",")),
        "parts": (chats, raw('{"max_tokens":1,"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}",
                             size, ",")),
        "blocks": ("/v1/messages", raw('{"max_tokens":1,"messages":[{"role":"user","content":[',
                                       '{"type":"text","text":"a"}', "]}]}", size, ",")),
        "late systems": ("/v1/messages", raw('{"max_tokens":1,"messages":[', '{"role":"system","content":"a"}', "]}", size,
                                             ",")),
        "unknown blocks": ("/v1/messages", raw('{"max_tokens":1,"messages":[{"role":"user","content":[',
                                               '{"type":"text","text":"a","x":1}', "]}]}", size, ",")),
        "items": ("/v1/responses", raw('{"max_output_tokens":1,"input":[',
                                       '{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}', "]}", size,
                                       ",")),
        "results of calls": ("/api/chat", results_of_the_last_calls(size)),
        "escaped keys": (chats, escaped_keys(size)),
        "calls": (chats, raw(
            '{"max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[',
            '{"function":{"name":"f","arguments":"{\\"a\\":[1,2,3]}"}}', ']},{"role":"user","content":"z"}]}', size, ",")),
        "kwargs": (chats, keys(size, USER + ',"chat_template_kwargs":{', "}}")),
        "unknown fields": (chats, keys(size, USER + ",", "}")),
        "tools": (chats, raw(USER + ',"tools":[', '{"type":"function","function":{"name":"f","parameters":{"b":1,"a":[]}}}',
                             "]}", size, ",")),
        "one tool of many keys": (chats, keys(size, USER + ',"tools":[{"type":"function","function":{', "}}]}")),
        "biases": (chats, keys(size, USER + ',"logit_bias":{', "}}")),
        "stops": (chats, raw(USER + ',"stop":[', '"ab"', "]}", size, ",")),
        "long name": (chats, raw(USER + ',"model":"', "m", '"}', size)),
        "deep": (chats, raw(USER + ',"x":[', "[" * 50 + "]" * 50, "]}", size, ",")),
        "not JSON": (chats, raw(USER + ',"x":"', "\\u00e9", '"', size)),
        "not UTF-8": (chats, raw(USER + ',"x":"', "e", '"', size) + b"\xff}"),
        "prompt text": ("/v1/completions", raw('{"max_tokens":1,"prompt":"', "a1 ", '"}', size)),
        "prompt ids": ("/v1/completions", raw('{"max_tokens":1,"prompt":[', "7", "]}", size, ",")),
        "prompt lists": ("/v1/completions", raw('{"max_tokens":1,"prompt":[', "[1,2]", "]}", size, ",")),
        "tokenize": ("/tokenize", raw('{"content":"', "a1 ", '"}', size)),
        "tokenize spaces": ("/tokenize", raw('{"content":"', " ", '"}', size)),
        "tokenize specials": ("/tokenize", raw('{"content":"', "<|end|>", '"}', size)),
        "tokenize pieces": ("/tokenize", raw('{"with_pieces":true,"content":"', "a", '"}', size)),
        "detokenize": ("/detokenize", raw('{"tokens":[', "9", "]}", size, ",")),
        "apply-template": ("/apply-template", raw(text, "Where? ", '"}]}', size)),
        "apply-template messages": ("/apply-template", raw('{"messages":[', '{"role":"user","content":"ab"}', "]}", size, ",")),
    }


# Operations that once took quadratic time or hundreds of megabytes, in templates that somebody may serve.
TEMPLATES = {
    "lower": "{{ messages[0].content|lower }}",
    "capitalize": "{{ messages[0].content|capitalize }}",
    "caseless sort": "{{ [messages[0].content, messages[0].content ~ 'x']|sort|length }}{{ messages[0].role }}",
    "split": "{% for part in messages[0].content.split(' ') %}{{ part }}{% endfor %}.",
    "think": "{% if '</think>' in messages[0].content %}{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}{% endif %}.",
    "slices": "{{ messages[0].content[1:] }}{{ messages[0].content[::-1] }}",
    "title": "{{ messages[0].content|title }}{{ messages[0].content.title() }}",
    "keys": "{% for m in messages %}{{ m }}{% endfor %}{{ tools|tojson }}",
    "replace": "{{ messages[0].content|replace('a', 'bb')|replace(' ', '') }}.",
    "join": "{{ messages[0].content|join('-') }}",
}
