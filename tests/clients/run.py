#!/usr/bin/env python3
"""Asks a running `walla serve` with clients of the chat completions protocol, and prints a table.

    python3 -m venv venv && venv/bin/pip install -r tests/clients/requirements.txt
    walla serve MODEL --embedding-model EMBEDDER --port 8080 &
    venv/bin/python tests/clients/run.py http://127.0.0.1:8080/v1 [--output FILE]

Each feature is a request and what must hold for any model. The status is 1 if one fails.
"""

import argparse
import importlib.metadata
import json
import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from typing import Literal  # noqa: E402

from pydantic import BaseModel, Field  # noqa: E402

PERSONA = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver, nails cost 1 copper."
QUESTION = "What does a horseshoe cost? And nails?"
LIMITS = {"temperature": 0, "max_tokens": 120}
ITEMS = ["horseshoe", "nails"]
SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string", "enum": ITEMS}},
    "required": ["item"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Price of an item.", "parameters": SCHEMA},
}
ASKED = [{"role": "system", "content": PERSONA}, {"role": "user", "content": QUESTION}]


def call(name, item):
    arguments = json.dumps({"item": item})
    return {"id": name, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def rounds():
    """Conversations with two calls and their results, in both orders."""
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("a", "horseshoe"), call("b", "nails")],
    }
    results = [
        {"role": "tool", "tool_call_id": "a", "content": "3 silver"},
        {"role": "tool", "tool_call_id": "b", "content": "1 copper"},
    ]
    return [[*ASKED, calls, *results], [*ASKED, calls, *reversed(results)]]


class Price(BaseModel):
    """A price."""

    silver: int = Field(ge=0, le=9)
    item: Literal["horseshoe", "nails"]


def needs(condition, what):
    if not condition:
        raise AssertionError(what)


def is_look_up(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    needs(name == "look_up" and arguments["item"] in ITEMS, f"{name} {arguments}")


def openai_features(url, key, model, embedding):
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key, max_retries=0)

    def ask(messages=ASKED, **more):
        return client.chat.completions.create(model=model, messages=messages, **{**LIMITS, **more})

    def conversation():
        needs(ask().choices[0].message.content, "no text")

    def stream():
        more = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(ask(**more))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        needs(text == ask().choices[0].message.content, text)
        needs(chunks[-1].usage.completion_tokens > 0, "no usage")

    def structured():
        parse = client.chat.completions.parse
        price = parse(model=model, messages=ASKED, response_format=Price, **LIMITS)
        needs(isinstance(price.choices[0].message.parsed, Price), "not parsed")

    def tools():
        answer = ask(tools=[TOOL], tool_choice="required").choices[0]
        needs(answer.finish_reason == "tool_calls", answer.finish_reason)
        for made in answer.message.tool_calls:
            is_look_up(made.function.name, made.function.arguments)
        results = [
            {"role": "tool", "tool_call_id": made.id, "content": "3 silver"}
            for made in answer.message.tool_calls
        ]
        ask([*ASKED, answer.message, *results], tools=[TOOL], tool_choice="none")

    def streamed_tools():
        chunks = ask(tools=[TOOL], tool_choice="required", stream=True)
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        is_look_up(calls[0].function.name, calls[0].function.arguments)

    def both_orders():
        answers = [ask(r, tools=[TOOL], tool_choice="none") for r in rounds()]
        texts = {answer.choices[0].message.content for answer in answers}
        tokens = {answer.usage.prompt_tokens for answer in answers}
        needs(len(texts) == 1 and len(tokens) == 1, f"{texts} {tokens}")

    def required_after_result():
        named = {"type": "function", "function": {"name": "look_up"}}
        for choice in ["required", named]:
            answer = ask(rounds()[1], tools=[TOOL], tool_choice=choice).choices[0]
            made = answer.message.tool_calls[0]
            is_look_up(made.function.name, made.function.arguments)

    def embeddings():
        found = client.embeddings.create(model=embedding, input=["iron", "rain"])
        numbers = client.embeddings.create(
            model=embedding, input=["iron", "rain"], encoding_format="float"
        )
        for one, other in zip(found.data, numbers.data, strict=True):
            needs(max(abs(a - b) for a, b in zip(one.embedding, other.embedding)) < 1e-6, "differ")

    def models():
        needs(model in [its.id for its in client.models.list()], "not listed")
        needs(client.models.retrieve(model).created > 0, "no time")

    return {
        "conversation": conversation,
        "stream": stream,
        "structured output": structured,
        "tools": tools,
        "streamed tools": streamed_tools,
        "two results in both orders": both_orders,
        "required call after a result": required_after_result,
        "embeddings": embeddings,
        "models": models,
    }


def langchain_features(url, key, model, embedding):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(base_url=url, api_key=key, model=model, max_retries=0, **LIMITS)
    tools = chat.bind_tools([TOOL], tool_choice="required")

    def conversation():
        needs(chat.invoke(ASKED).content, "no text")

    def stream():
        text = "".join(chunk.content for chunk in chat.stream(ASKED))
        needs(text == chat.invoke(ASKED).content, text)

    def structured():
        for method in ["json_schema", "function_calling"]:
            price = chat.with_structured_output(Price, method=method).invoke(ASKED)
            needs(isinstance(price, Price), f"{method}: {price}")

    def called():
        made = tools.invoke(ASKED).tool_calls
        is_look_up(made[0]["name"], made[0]["args"])

    def streamed():
        chunks = list(tools.stream(ASKED))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        is_look_up(whole.tool_calls[0]["name"], whole.tool_calls[0]["args"])

    def both_orders():
        none = chat.bind_tools([TOOL], tool_choice="none")
        texts = {none.invoke(r).content for r in rounds()}
        needs(len(texts) == 1, f"{texts}")

    def loop():
        """As an agent: each call of three rounds is answered by its id; ids do not repeat."""
        messages, ids = list(ASKED), []
        for _ in range(3):
            answer = tools.invoke(messages)
            ids += [made["id"] for made in answer.tool_calls]
            results = [
                {"role": "tool", "tool_call_id": made["id"], "content": "3 silver"}
                for made in answer.tool_calls
            ]
            messages += [answer, *results]
        needs(len(ids) >= 3 and len(set(ids)) == len(ids), f"{ids}")

    def embeddings():
        more = {"base_url": url, "api_key": key, "model": embedding}
        # Otherwise it sends tokens of another model.
        more["check_embedding_ctx_length"] = False
        needs(len(OpenAIEmbeddings(**more).embed_documents(["iron", "rain"])) == 2, "missing")

    return {
        "conversation": conversation,
        "stream": stream,
        "structured output": structured,
        "tools": called,
        "streamed tools": streamed,
        "two results in both orders": both_orders,
        "required call after a result": loop,
        "embeddings": embeddings,
    }


def litellm_features(url, key, model, embedding):
    import litellm

    litellm.suppress_debug_info = True
    name = {"model": f"openai/{model}", "api_base": url, "api_key": key, "num_retries": 0}

    def ask(messages=ASKED, **more):
        return litellm.completion(messages=messages, **name, **{**LIMITS, **more})

    def conversation():
        needs(ask().choices[0].message.content, "no text")

    def stream():
        chunks = ask(stream=True)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        needs(text == ask().choices[0].message.content, text)

    def structured():
        text = ask(response_format=Price).choices[0].message.content
        Price.model_validate_json(text)

    def tools():
        made = ask(tools=[TOOL], tool_choice="required").choices[0].message.tool_calls[0]
        is_look_up(made.function.name, made.function.arguments)

    def streamed_tools():
        chunks = list(ask(tools=[TOOL], tool_choice="required", stream=True))
        whole = litellm.stream_chunk_builder(chunks)
        made = whole.choices[0].message.tool_calls[0]
        is_look_up(made.function.name, made.function.arguments)

    def both_orders():
        answers = [ask(r, tools=[TOOL], tool_choice="none") for r in rounds()]
        texts = {answer.choices[0].message.content for answer in answers}
        needs(len(texts) == 1, f"{texts}")

    def required_after_result():
        answer = ask(rounds()[1], tools=[TOOL], tool_choice="required")
        made = answer.choices[0].message.tool_calls[0]
        is_look_up(made.function.name, made.function.arguments)

    def embeddings():
        found = litellm.embedding(
            model=f"openai/{embedding}", input=["iron", "rain"], api_base=url, api_key=key
        )
        needs(len(found.data) == 2, "missing")

    return {
        "conversation": conversation,
        "stream": stream,
        "structured output": structured,
        "tools": tools,
        "streamed tools": streamed_tools,
        "two results in both orders": both_orders,
        "required call after a result": required_after_result,
        "embeddings": embeddings,
    }


def instructor_features(url, key, model, _):
    import instructor
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key, max_retries=0)

    def ask(mode, messages=ASKED, **more):
        its = instructor.from_openai(client, mode=mode)
        more = {"max_retries": 0, **LIMITS, **more}
        return its.chat.completions.create(
            model=model, messages=messages, response_model=Price, **more
        )

    def structured():
        for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
            needs(isinstance(ask(mode), Price), f"{mode}")

    def streamed():
        its = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        parts = its.chat.completions.create_partial(
            model=model, messages=ASKED, response_model=Price, max_retries=0, **LIMITS
        )
        last = list(parts)[-1]
        needs(last.silver is not None and last.item is not None, f"{last}")

    def required_after_result():
        price = ask(instructor.Mode.TOOLS, rounds()[1])
        needs(isinstance(price, Price), f"{price}")

    return {
        "structured output": structured,
        "streamed tools": streamed,
        "required call after a result": required_after_result,
    }


def pydantic_ai_features(url, key, model, _):
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    its = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=key))
    settings = {"temperature": 0.0, "max_tokens": 120}
    more = {"model_settings": settings, "retries": 0}

    def conversation():
        needs(Agent(its, instructions=PERSONA, **more).run_sync(QUESTION).output, "no text")

    def stream():
        import asyncio

        async def streamed():
            agent = Agent(its, instructions=PERSONA, **more)
            async with agent.run_stream(QUESTION) as answer:
                return await answer.get_output()

        needs(asyncio.run(streamed()), "no text")

    def structured():
        agent = Agent(its, instructions=PERSONA, output_type=Price, **more)
        needs(isinstance(agent.run_sync(QUESTION).output, Price), "not parsed")

    def after(order):
        calls = [ToolCallPart("look_up", {"item": item}, tool_call_id=item) for item in ITEMS]
        results = [
            ToolReturnPart("look_up", content=text, tool_call_id=item)
            for item, text in zip(ITEMS, ["3 silver", "1 copper"], strict=True)
        ]
        return [
            ModelRequest(parts=[UserPromptPart(QUESTION)]),
            ModelResponse(parts=calls),
            ModelRequest(parts=results[::order]),
        ]

    def both_orders():
        agent = Agent(its, instructions=PERSONA, **more)
        texts = {agent.run_sync(message_history=after(order)).output for order in [1, -1]}
        needs(len(texts) == 1, f"{texts}")

    def required_after_result():
        # Plain text would be refused: its output is a tool that must be called.
        agent = Agent(its, instructions=PERSONA, output_type=Price, **more)
        output = agent.run_sync(message_history=after(-1)).output
        needs(isinstance(output, Price), f"{output}")

    return {
        "conversation": conversation,
        "stream": stream,
        "structured output": structured,
        "two results in both orders": both_orders,
        "required call after a result": required_after_result,
    }


CLIENTS = {
    "openai": openai_features,
    "langchain-openai": langchain_features,
    "litellm": litellm_features,
    "instructor": instructor_features,
    "pydantic-ai-slim": pydantic_ai_features,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--key", default="none")
    parser.add_argument("--output", help="JSON file of the results")
    arguments = parser.parse_args()

    from openai import OpenAI

    models = [m.id for m in OpenAI(base_url=arguments.url, api_key=arguments.key).models.list()]
    model, embedding = models[0], models[-1]
    results, failed = {}, False
    for client, features in CLIENTS.items():
        of_client = {"version": importlib.metadata.version(client), "features": {}}
        for feature, run in features(arguments.url, arguments.key, model, embedding).items():
            try:
                run()
                answer = "yes"
            except Exception as error:  # noqa: BLE001 - any defect of a client is a result
                answer, failed = f"{type(error).__name__}: {error}"[:300], True
            of_client["features"][feature] = answer
            print(f"{client} {of_client['version']}: {feature}: {answer}", flush=True)
        results[client] = of_client
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"models": models, "clients": results}, file, indent=1)
            file.write("\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
