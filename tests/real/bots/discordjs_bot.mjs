// An unmodified discord.js bot, told only another base address. Speaks the same JSON lines as discordpy_bot.py.
import readline from 'node:readline';
import { Client, Events, GatewayIntentBits } from 'discord.js';

const base = process.env.CELLPLANE_BASE.replace(/\/$/, '');
const say = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);

const client = new Client({
  intents: [GatewayIntentBits.Guilds, GatewayIntentBits.GuildMessages, GatewayIntentBits.MessageContent],
  rest: { api: `${base}/api` },
});

client.once(Events.ClientReady, (ready) =>
  say('ready', { guilds: [...ready.guilds.cache.keys()], user: ready.user.id }));
client.on(Events.GuildCreate, (guild) => say('guild', { guild: guild.id }));
client.on(Events.MessageCreate, (message) =>
  say('message', { id: message.id, channel: message.channelId, content: message.content, author: message.author.id }));
// Also when another session begins, which has nothing of what was said in between.
client.on(Events.Raw, ({ t }) => t === 'READY' && say('session'));
client.on(Events.ShardResume, () => say('resumed'));
client.on(Events.ShardReconnecting, () => say('disconnect'));
client.on(Events.Error, (error) => say('error', { message: String(error) }));

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const command = JSON.parse(line);
  if (command.quit) {
    await client.destroy();
    process.exit(0);
  }
  try {
    const channel = await client.channels.fetch(command.channel);
    const sent = await channel.send(command.send);
    say('sent', { id: sent.id, content: command.send });
  } catch (error) {
    say('error', { message: String(error), content: command.send });
  }
});

await client.login(process.env.CELLPLANE_TOKEN);
