/* A module for tests: CALLER.CALL command [argument ...] calls the command by RedisModule_Call and passes its reply on.
 * The few functions that it needs are declared here, as a module may. */
#include <stddef.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static Reply *(*Call)(Context *, const char *, const char *, ...);
static void (*FreeCallReply)(Reply *);
static int (*ReplyWithCallReply)(Context *, Reply *);
static int (*ReplyWithError)(Context *, const char *);
static const char *(*StringPtrLen)(const String *, size_t *);

static int call(Context *ctx, String **argv, int argc) {
    if (argc < 2) return ReplyWithError(ctx, "ERR call what?");
    Reply *reply = Call(ctx, StringPtrLen(argv[1], NULL), "v", argv + 2, (size_t)argc - 2);
    if (!reply) return ReplyWithError(ctx, "ERR no reply");
    ReplyWithCallReply(ctx, reply);
    FreeCallReply(reply);
    return 0;
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    get("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get("RedisModule_CreateCommand", &CreateCommand);
    get("RedisModule_Call", &Call);
    get("RedisModule_FreeCallReply", &FreeCallReply);
    get("RedisModule_ReplyWithCallReply", &ReplyWithCallReply);
    get("RedisModule_ReplyWithError", &ReplyWithError);
    get("RedisModule_StringPtrLen", &StringPtrLen);
    SetModuleAttribs(ctx, "caller", 1, 1);
    return CreateCommand(ctx, "caller.call", call, "write", 0, 0, 0);
}
