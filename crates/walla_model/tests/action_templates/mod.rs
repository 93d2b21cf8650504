//! Small templates with the structure of the vendors' ones: how each prints tools, calls and
//! results. None is a copy.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use walla_model::chat::{ChatTemplate, Tools};

/// What a template prints: tools, calls, results.
pub type Prints = [bool; 3];

/// Templates with their names and what they print.
pub const TEMPLATES: [(&str, Prints, &str); 14] = [
    ("json in tags", [true, true, true], JSON_IN_TAGS),
    ("parameters in tags", [true, true, true], PARAMETERS_IN_TAGS),
    ("one call per message", [true, true, true], ONE_CALL),
    ("identifiers of nine letters", [true, true, true], NINE_LETTERS),
    ("calls after text, uncounted", [true, true, true], NAME_AND_ARGUMENTS),
    ("python calls", [true, true, true], PYTHON_CALLS),
    ("calls before text", [true, true, true], CALLS_BEFORE_TEXT),
    ("results inside the turn", [true, true, true], RESULTS_IN_TURN),
    ("tools in the system message", [true, false, true], TOOLS_OF_SYSTEM),
    ("arguments as text", [true, true, true], TEXT_ARGUMENTS),
    ("flat calls", [true, true, true], FLAT_CALLS),
    ("no actions, alternating", [false, false, false], ALTERNATING),
    ("no actions, any role", [false, false, true], ANY_ROLE),
    ("results as the agent's text", [false, false, false], RESULTS_OF_AGENT),
];

/// Qwen 2.5 and 3, Granite 4, Hermes.
const JSON_IN_TAGS: &str = "\
{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' + m.content }}
{%- for c in m.tool_calls %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}
{%- if c.function %}{% set c = c.function %}{% endif %}
{{- '<tool_call>\n{\"name\": \"' + c.name + '\", \"arguments\": ' }}
{{- c.arguments if c.arguments is string else c.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}{% endif %}{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Qwen 3.5 and Qwen 3 Coder: parameters without JSON; a late system message or a conversation
/// without a question is refused.
const PARAMETERS_IN_TAGS: &str = "\
{%- if tools and tools is iterable and tools is not mapping %}<|im_start|>system\n<tools>
{%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>
{%- if messages[0].role == 'system' %}\n\n{{ messages[0].content | trim }}{% endif %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>
{% endif %}
{%- if not (messages | selectattr('role', 'equalto', 'user') | list) %}
{{- raise_exception('No user query found in messages.') }}{% endif %}
{%- for m in messages %}{% set content = m.content | trim %}
{%- if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('late system') }}{% endif %}
{%- elif m.role == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' + content }}
{%- if m.tool_calls and m.tool_calls is iterable and m.tool_calls is not mapping %}
{%- for c in m.tool_calls %}{% if c.function is defined %}{% set c = c.function %}{% endif %}
{{- ('\n\n' if loop.first and content else '') + '<tool_call>\n<function=' + c.name + '>\n' }}
{%- for name, value in c.arguments | items %}{{ '<parameter=' + name + '>\n' }}
{{- value | tojson | safe if value is mapping or (value is sequence and value is not string)
    else value | string }}{{ '\n</parameter>\n' }}
{%- endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}{% if loop.previtem and loop.previtem.role != 'tool' %}
{{- '<|im_start|>user' }}{% endif %}{{ '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}";

/// Llama 3.1 and 3.2: tools in the first user message, one call per message, without its text.
const ONE_CALL: &str = "\
{{- bos_token }}{% if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}{% if messages | length == 0 %}
{{- raise_exception('Cannot put tools in the first user message!') }}{% endif %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nFunctions:\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}
{{- messages[0]['content'] | trim + '<|eot_id|>' }}{% set messages = messages[1:] %}{% endif %}
{%- for m in messages %}
{%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim }}<|eot_id|>
{%- elif 'tool_calls' in m %}{% if not m.tool_calls | length == 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set c = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"' + c.name }}
{{- '\", \"parameters\": ' }}{{ c.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
{%- if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}
{%- else %}{{ m.content }}{% endif %}{{ '<|eot_id|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// Mistral's tokenizers v3: calls are not counted, their text is lost, the persona is in the last
/// message of the user.
const NINE_LETTERS: &str = "\
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{%- set messages = messages[1:] %}{% endif %}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for m in messages %}
{%- if not (m.role == 'tool' or (m.tool_calls is defined and m.tool_calls is not none)) %}
{%- if (m['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('must alternate') }}
{%- endif %}{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for m in messages %}{% if m['role'] == 'user' %}
{%- if tools is not none and m == asked[-1] %}{{ '[AVAILABLE_TOOLS][' }}
{%- for tool in tools %}{% set tool = tool.function %}
{{- '{\"type\": \"function\", \"function\": {' }}
{%- for key, value in tool.items() if key != 'return' %}
{{- '\"' + key + '\": ' + (('\"' + value + '\"') if value is string else value | tojson) }}
{{- '' if loop.last else ', ' }}{% endfor %}{{ '}}' if loop.last else '}}, ' }}{% endfor %}
{{- '][/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + (system + '\n\n' if loop.last and system is defined else '') + m['content'] }}
{{- '[/INST]' }}
{%- elif m.tool_calls is defined and m.tool_calls is not none %}{{ '[TOOL_CALLS][' }}
{%- for c in m.tool_calls %}{% set out = c.function | tojson %}{{ out[:-1] }}
{%- if c.id is not defined or c.id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}
{{- ', \"id\": \"' + c.id + '\"}' + (']' + eos_token if loop.last else ', ') }}{% endfor %}
{%- elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}
{%- elif m['role'] == 'tool' %}{{ '[TOOL_RESULTS]{\"content\": ' + m.content | string + ', ' }}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
{{- raise_exception('length 9!') }}{% endif %}
{{- '\"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}";

/// Ministral 3 and Devstral 2: calls follow the text, and a message with calls is not counted.
const NAME_AND_ARGUMENTS: &str = "\
{{- bos_token }}{% if messages[0]['role'] == 'system' %}
{{- '[SYSTEM_PROMPT]' + messages[0]['content'] + '[/SYSTEM_PROMPT]' }}
{%- set messages = messages[1:] %}{% endif %}
{%- if tools is defined and tools is not none and tools | length > 0 %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for m in messages %}
{%- set has_calls = m.tool_calls is defined and m.tool_calls is not none and m.tool_calls %}
{%- if m.role == 'user' or (m.role == 'assistant' and not has_calls) %}
{%- if (m['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('must alternate') }}
{%- endif %}{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{%- for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}
{%- if not m.content and not m.tool_calls %}{{ raise_exception('empty') }}{% endif %}
{{- m.content }}{% for c in m.tool_calls %}{% set arguments = c.function.arguments %}
{%- if arguments is not string %}{% set arguments = arguments | tojson | safe %}{% endif %}
{{- '[TOOL_CALLS]' + c.function.name + '[ARGS]' + arguments }}{% endfor %}{{ eos_token }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content | string + '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}";

/// LFM2.5: calls in the syntax of Python.
const PYTHON_CALLS: &str = "\
{{- bos_token }}{% set ns = namespace(system='') %}
{%- if messages[0]['role'] == 'system' %}{% set ns.system = messages[0]['content'] %}
{%- set messages = messages[1:] %}{% endif %}
{%- if tools %}{% set ns.system = ns.system + '\nList of tools: ' + (tools | tojson) %}{% endif %}
{%- if ns.system %}{{ '<|im_start|>system\n' + ns.system + '<|im_end|>\n' }}{% endif %}
{%- macro calls(list) %}{% set all = namespace(list=[]) %}
{%- for c in list %}{% set arguments = namespace(list=[]) %}
{%- for name, value in c['function']['arguments'].items() %}
{%- set text = '\\'' + value + '\\'' if value is string else value | tojson %}
{%- set arguments.list = arguments.list + [name + '=' + text] %}{% endfor %}
{%- set all.list = all.list + [c['function']['name'] + '(' + arguments.list | join(', ') + ')'] %}
{%- endfor %}{{ '<|tool_call_start|>[' + all.list | join(', ') + ']<|tool_call_end|>' }}
{%- endmacro %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'tool' %}{{ '<|tool_response_start|>' + m.content + '<|tool_response_end|>' }}
{%- else %}{{ m.content }}{% if m.tool_calls is defined %}{{ calls(m.tool_calls) }}{% endif %}
{%- endif %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// As some templates for LFM2: the calls of a message precede its text.
const CALLS_BEFORE_TEXT: &str = "\
{%- if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}
{%- for m in messages %}{% set content = m['content'] %}
{%- if m['role'] == 'assistant' and 'tool_calls' in m and m['tool_calls'] %}
{%- set content = '<|tool_call_start|>' + m['tool_calls'] | map(attribute='function') | list
    | tojson + '<|tool_call_end|>' + content %}{% endif %}
{{- '<|im_start|>' + m['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Gemma 4: results are part of the agent's turn, which stays open until they follow.
const RESULTS_IN_TURN: &str = "\
{%- macro argument(value) %}
{%- if value is string %}{{ '<|\"|>' + value + '<|\"|>' }}
{%- elif value is boolean %}{{ 'true' if value else 'false' }}
{%- elif value is mapping %}{{ '{' }}{% for key, item in value | dictsort %}{{ key }}:
{{- argument(item) }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}
{%- elif value is sequence %}{{ '[' }}{% for item in value %}{{ argument(item) }}
{{- '' if loop.last else ',' }}{% endfor %}{{ ']' }}{% else %}{{ value }}{% endif %}
{%- endmacro %}
{%- macro properties(all) %}{% for key, value in all | dictsort %}
{%- if key not in ['description', 'type', 'properties', 'required', 'nullable'] %}{{ key }}:{
{%- if value['description'] %}description:{{ argument(value['description']) }},{% endif %}
{%- if value['type'] | upper == 'STRING' and value['enum'] %}enum:{{ argument(value['enum']) }},
{%- endif %}type:{{ argument(value['type'] | upper) }}}{{ '' if loop.last else ',' }}{% endif %}
{%- endfor %}{% endmacro %}
{{- bos_token }}{% if tools or messages[0]['role'] == 'system' %}{{ '<|turn>system\n' }}
{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}
{%- set messages = messages[1:] %}{% endif %}
{%- for tool in tools or [] %}{{ '<|tool>declaration:' + tool['function']['name'] }}
{{- '{description:' + argument(tool['function']['description']) + ',parameters:{' }}
{{- properties(tool['function']['parameters']['properties']) }}{{ '}}<tool|>' }}
{%- endfor %}{{ '<turn|>\n' }}{% endif %}
{%- set ns = namespace(last=none, open=false) %}
{%- for m in messages %}{% if m['role'] != 'tool' %}{% set ns.open = false %}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{%- if not (role == 'model' and ns.last == 'assistant') %}{{ '<|turn>' + role + '\n' }}{% endif %}
{%- set found = namespace(any=false, stopped=false, next=none) %}
{%- for c in m.get('tool_calls') or [] %}{{ '<|tool_call>call:' + c['function']['name'] + '{' }}
{%- for key, value in c['function']['arguments'] | dictsort %}{{ key }}:{{ argument(value) }}
{{- '' if loop.last else ',' }}{% endfor %}{{ '}<tool_call|>' }}{% endfor %}
{%- for k in range(loop.index0 + 1, messages | length) %}
{%- if not found.stopped and messages[k]['role'] == 'tool' %}
{%- if m.get('tool_calls') %}{% set found.any = true %}
{%- set called = namespace(name='unknown') %}
{%- for c in m.get('tool_calls') %}{% if c.get('id') == messages[k].get('tool_call_id') %}
{%- set called.name = c['function']['name'] %}{% endif %}{% endfor %}
{{- '<|tool_response>response:' + called.name + '{value:' }}
{{- argument(messages[k]['content']) + '}<tool_response|>' }}{% endif %}
{%- elif not found.stopped %}{% set found.stopped = true %}
{%- set found.next = messages[k]['role'] %}{% endif %}{% endfor %}
{{- m['content'] | trim }}
{%- if m.get('tool_calls') and not found.any %}{{ '<|tool_response>' }}{% set ns.open = true %}
{%- elif role == 'model' and found.next == 'assistant' %}
{%- elif found.any and not m['content'] and not found.stopped %}{% set ns.open = true %}
{%- else %}{{ '<turn|>\n' }}{% endif %}{% set ns.last = m['role'] %}{% endif %}{% endfor %}
{%- if add_generation_prompt and not ns.open %}{{ '<|turn>model\n' }}{% endif %}";

/// Phi-4-mini: the system message has the tools, in JSON.
const TOOLS_OF_SYSTEM: &str = "\
{% for m in messages %}
{%- if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}
{{- '<|system|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|><|end|>' }}
{%- else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}";

/// `DeepSeek` R1: the arguments are joined as text.
const TEXT_ARGUMENTS: &str = "\
{{- bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}{% if m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content }}
{%- for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c['function']['name'] }}
{{- '\n```json\n' + c['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}{% endfor %}
{{- '<｜end▁of▁sentence｜>' }}
{%- elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- else %}{{ ('<｜User｜>' if m.role == 'user' else '') + m.content + '\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

/// Name and arguments beside `function`.
const FLAT_CALLS: &str = "\
{% for t in tools or [] %}<|tool|>{{ t.function | tojson }}{% endfor %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}
{{- '<|tool_call|>' + c.name + c.arguments | tojson + '<|/tool_call|>' }}{% endfor %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Gemma 2.
const ALTERNATING: &str = "\
{{ bos_token }}{% for m in messages %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}
{%- endif %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) }}
{{- '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

/// `ChatML`.
const ANY_ROLE: &str = "\
{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A template that prints every role but the user's as the agent.
const RESULTS_OF_AGENT: &str = "\
{% for m in messages %}<|{{ 'user' if m.role == 'user' else 'assistant' }}|>{{ m.content }}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// All of them, compiled.
pub fn templates() -> Vec<(String, ChatTemplate)> {
    let compiled = |(name, _, source): (&str, Prints, &str)| {
        let template = ChatTemplate::new(source, "<s>", "</s>")
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        (name.to_owned(), template)
    };
    TEMPLATES.into_iter().map(compiled).collect()
}

/// A list of one tool whose texts contain `text`.
pub fn tools(text: &str) -> Tools {
    let list = serde_json::json!([{
        "type": "function",
        "function": {
            "name": "give",
            "description": text,
            "parameters": {
                "type": "object",
                "title": text,
                "properties": {
                    "item": {"type": "string", "description": text, "enum": ["nails", text]},
                    "count": {"type": ["integer", "null"], "default": text},
                    text: {"type": text, "const": text, "items": {"type": "string"}},
                },
                "required": ["item", text],
            },
        },
    }]);
    Tools::new(&list, &format!("You can give: {text}")).unwrap()
}

/// A call whose arguments contain `text`.
pub fn call(text: &str) -> String {
    let arguments = serde_json::json!({"item": text, "count": 2, "more": [text, true], text: 1.5});
    serde_json::json!({"name": "give", "arguments": arguments}).to_string()
}
