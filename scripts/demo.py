"""The example of the product documents, through a real MCP client: an agent makes a computer, writes a program, runs it,
pauses, runs it again, and deletes the computer. Prints the transcript.

usage: demo.py <superserve program> [<state directory>]; a server has to be running on that state directory.
"""

import asyncio
import json
import subprocess
import sys
import tempfile

from mcp import Client, StdioServerParameters, stdio_client

PROGRAM = """\
def primes(count):
    found = []
    candidate = 2
    while len(found) < count:
        if all(candidate % p for p in found if p * p <= candidate):
            found.append(candidate)
        candidate += 1
    return found


print(*primes(15))
"""


async def main() -> None:
    program, *state = sys.argv[1:]
    where = ["--state-dir", state[0]] if state else []
    printed = subprocess.run([program, "client-env", "--format", "json", *where], capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(printed.stderr + "Start a server first: make up")
    variables = json.loads(printed.stdout)
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}

    # The server's own log would run through the transcript.
    log = tempfile.TemporaryFile("w+")
    transport = stdio_client(StdioServerParameters(command=program, args=["mcp"], env=env), errlog=log)
    async with Client(transport) as client:

        async def call(tool: str, **arguments: str) -> dict:
            shown = {k: v if len(v) < 60 else f"… {len(v)} characters …" for k, v in arguments.items()}
            print(f"\n▶ {tool} {json.dumps(shown, ensure_ascii=False)}")
            result = await client.call_tool(tool, arguments)
            for block in result.content:
                print("  " + block.text.rstrip().replace("\n", "\n  "))
            if result.is_error:
                log.seek(0)
                sys.exit(f"{tool} failed\n{log.read()}")
            return result.structured_content

        sandbox = (await call("sandbox_create", name="primes"))["id"]
        try:
            path = "/home/user/primes.py"
            await call("sandbox_files_write", sandbox_id=sandbox, path=path, content=PROGRAM)
            first = await call("sandbox_exec", sandbox_id=sandbox, command=f"python {path}")
            await call("sandbox_pause", sandbox_id=sandbox)
            second = await call("sandbox_exec", sandbox_id=sandbox, command=f"python {path}")
            if first["stdout"] != second["stdout"] or not first["stdout"].startswith("2 3 5 7 11"):
                sys.exit("the two runs printed something else than the first primes")
        finally:
            await call("sandbox_kill", sandbox_id=sandbox)


asyncio.run(main())
