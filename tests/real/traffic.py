"""Sends that are numbered and remembered, and the look whether every client got each of them exactly once."""

import threading
import time
import urllib.error


class Traffic:
    """Sends numbered messages until stopped and remembers which were acknowledged. What goes beyond the rate is sent again when the answer
    says so; with more than one try also what is not answered or answered by 5xx, under its nonce, as client libraries do."""

    def __init__(self, rest, channel, prefix, pause=0.05, tries=1):
        self.rest, self.channel, self.prefix, self.pause, self.tries = rest, channel, prefix, pause, tries
        self.acknowledged, self.refused, self.slowest = [], [], 0.0
        # Why something was sent again: answers that said so, and connections that gave none.
        self.answers, self.broken = [], []
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
                if self._send(text) is None:
                    return  # stopped before it was sent
                self.acknowledged.append(text)
            except Exception as error:
                self.refused.append(f"{text}: {error}")
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.stopping.wait(self.pause)

    def _send(self, text):
        body = {"content": text} if self.tries == 1 else {"content": text, "nonce": text, "enforce_nonce": True}
        left = self.tries
        while True:
            try:
                return self.rest.call("POST", f"/channels/{self.channel}/messages", body)
            except urllib.error.HTTPError as error:
                if error.code == 429:
                    # What a quick machine said before used up the channel's rate: as any client, wait as told.
                    if self.stopping.wait(float(error.headers["Retry-After"])):
                        return None
                    continue
                left -= 1
                if error.code < 500 or not left:
                    raise
                self.answers.append(f"{text}: {error}")
            except OSError as error:
                left -= 1
                if not left:
                    raise
                self.broken.append(f"{text}: {error}")
            self.stopping.wait(0.5)

    def stop(self):
        self.stopping.set()
        self.thread.join(60 * self.tries)
        return self.acknowledged


def heard(bot, wanted, channel):
    """What the bot heard of the texts, once the last one has come: in order and none twice."""
    last = wanted[-1]
    bot.expect(f"message {last}", 60, lambda event: event["event"] == "message" and event["content"] == last)
    prefix = last.rsplit("-", 1)[0] + "-"
    seen = [event["content"] for event in bot.messages() if event["content"].startswith(prefix) and event["channel"] == channel]
    assert len(seen) == len(set(seen)), f"{bot.name} saw something twice"
    known = set(seen)
    order = [text for text in seen if text in set(wanted)]
    assert order == [text for text in wanted if text in known], f"{bot.name} saw another order"
    return known


def assert_each_once(bot, wanted, channel):
    """Every text reached the bot exactly once, in order."""
    known = heard(bot, wanted, channel)
    missing = [text for text in wanted if text not in known]
    assert not missing, f"{bot.name} lacks {missing[:5]} ({len(missing)})"
