"""Sends that are numbered and remembered, and the look whether every client got each of them exactly once."""

import threading
import time


class Traffic:
    """Sends numbered messages until stopped and remembers which were acknowledged."""

    def __init__(self, rest, channel, prefix, pause=0.05):
        self.rest, self.channel, self.prefix, self.pause = rest, channel, prefix, pause
        self.acknowledged, self.refused, self.slowest = [], [], 0.0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        number = 0
        while not self.stopping.is_set():
            text = f"{self.prefix}-{number}"
            number += 1
            began = time.monotonic()
            try:
                self.rest.call("POST", f"/channels/{self.channel}/messages", {"content": text})
                self.acknowledged.append(text)
            except Exception as error:
                self.refused.append(f"{text}: {error}")
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.stopping.wait(self.pause)

    def stop(self):
        self.stopping.set()
        self.thread.join(60)
        return self.acknowledged


def assert_each_once(bot, wanted, channel):
    """Every text reached the bot exactly once, in order."""
    last = wanted[-1]
    bot.expect(f"message {last}", 60, lambda event: event["event"] == "message" and event["content"] == last)
    prefix = last.rsplit("-", 1)[0] + "-"
    seen = [event["content"] for event in bot.messages() if event["content"].startswith(prefix) and event["channel"] == channel]
    missing = [text for text in wanted if text not in set(seen)]
    assert not missing, f"{bot.name} lacks {missing[:5]} ({len(missing)})"
    assert len(seen) == len(set(seen)), f"{bot.name} saw something twice"
    order = [text for text in seen if text in set(wanted)]
    assert order == wanted, f"{bot.name} saw another order"
