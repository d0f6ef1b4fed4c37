"""An unmodified discord.py bot, told only another base address. Speaks JSON lines with the suite.

Standard output: {"event": "ready" | "session" | "message" | "resumed" | "disconnect" | "sent" | "error", ...}
Standard input:  {"send": TEXT, "channel": ID} | {"quit": true}
"""

import asyncio
import json
import os
import sys

import discord
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route

BASE = os.environ["CELLPLANE_BASE"].rstrip("/")
TOKEN = os.environ["CELLPLANE_TOKEN"]

Route.BASE = f"{BASE}/api/v10"
DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(BASE.replace("http", "ws", 1) + "/")


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


intents = discord.Intents.default()
intents.message_content = True
client = discord.Client(intents=intents)


@client.event
async def on_socket_event_type(kind):
    # Also when another session begins, which has nothing of what was said in between. on_ready comes seconds after its first messages.
    if kind == "READY":
        say("session")


@client.event
async def on_ready():
    say("ready", guilds=[str(guild.id) for guild in client.guilds], user=str(client.user.id))


@client.event
async def on_guild_join(guild):
    say("guild", guild=str(guild.id))


@client.event
async def on_message(message):
    say("message", id=str(message.id), channel=str(message.channel.id), content=message.content, author=str(message.author.id))


@client.event
async def on_resumed():
    say("resumed")


@client.event
async def on_disconnect():
    say("disconnect")


async def commands():
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        if command.get("quit"):
            break
        try:
            channel = client.get_channel(int(command["channel"])) or await client.fetch_channel(int(command["channel"]))
            sent = await channel.send(command["send"])
            say("sent", id=str(sent.id), content=command["send"])
        except Exception as error:
            say("error", message=f"{type(error).__name__}: {error}", content=command.get("send"))
    await client.close()


async def main():
    async with client:
        asyncio.create_task(commands())
        await client.start(TOKEN)


asyncio.run(main())
