"""OpenAI's Responses API: its bodies become those of chats, and what a chat writes becomes its items and events."""
